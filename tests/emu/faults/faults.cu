/* faults.cu: kernels with deliberate faults, and two correct ones; faults.c says what the
 * emulated GPU must report for each. They run as one block of 64 threads. */

extern "C" __global__ void __launch_bounds__(64) shared_past(float *y, int n) {
    __shared__ float a[64], b[64];
    a[threadIdx.x + n] = b[threadIdx.x] = 1.0f; /* n 1: one element past the end. */
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(64) global_past(float *y, int n) {
    y[threadIdx.x + n] = 1.0f;
}

/* Reads the words of neighbours without a barrier between. */
extern "C" __global__ void __launch_bounds__(64) no_barrier(float *y, int n) {
    __shared__ float a[64];
    a[threadIdx.x] = 1.0f;
    y[threadIdx.x] = a[(threadIdx.x + n) % 64];
}

extern "C" __global__ void __launch_bounds__(64) no_wait(float *y, int n) {
    __shared__ float a[64];
    const unsigned to = (unsigned)__cvta_generic_to_shared(&a[threadIdx.x]);
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(y + threadIdx.x),
                 "r"(4)
                 : "memory");
    if (n != 2) {
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    if (n != 1) {
        asm volatile("cp.async.wait_group 0;" ::: "memory");
    }
    __syncthreads();
    y[threadIdx.x] = a[threadIdx.x] + 1.0f;
}

extern "C" __global__ void __launch_bounds__(64) half_barrier(float *y, int n) {
    if (threadIdx.x < 32 * n) {
        asm volatile("bar.sync %0, %1;" ::"r"(1), "r"(64) : "memory");
    }
    y[threadIdx.x] = 1.0f;
}

extern "C" __global__ void __launch_bounds__(64) absent_lane(float *y, int n) {
    if (threadIdx.x % 32 == 31 && n == 1) {
        return;
    }
    y[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 31);
}

extern "C" __global__ void __launch_bounds__(64) two_places(float *y, int n) {
    if (threadIdx.x % 32 < 16 && n == 1) {
        y[threadIdx.x] = (float)__ballot_sync(0xffffffffu, 1);
    } else {
        y[threadIdx.x] = __shfl_sync(0xffffffffu, 1.0f, 0);
    }
}

extern "C" __global__ void __launch_bounds__(64) not_aligned(float *y, int n) {
    __shared__ float a[68];
    const unsigned to = (unsigned)__cvta_generic_to_shared(&a[n]);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(y) : "memory");
    asm volatile("cp.async.commit_group;" ::: "memory");
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    y[threadIdx.x] = 1.0f;
}

/* Correct: 40 blocks wait for each other, more than the host has threads. flags (40): zeroed ints
 * after the 64 floats of y. */
extern "C" __global__ void __launch_bounds__(64) meet(float *y, int n) {
    int *const flags = (int *)(y + 64), up = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        asm volatile("st.release.gpu.global.s32 [%0], 1;" ::"l"(flags + blockIdx.x) : "memory");
    }
    for (int i = 0; i < (int)gridDim.x; i++) {
        for (up = 0; up == 0;) {
            asm volatile("ld.acquire.gpu.global.s32 %0, [%1];"
                         : "=r"(up)
                         : "l"(flags + i)
                         : "memory");
        }
    }
    if (blockIdx.x == 0) {
        y[threadIdx.x] = (float)(up + n);
    }
}

extern "C" __global__ void __launch_bounds__(64) blackwell(float *y, int n) {
    if (n == 1) {
        asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory");
    }
    y[threadIdx.x] = 1.0f;
}
