/* hopper.cu: kernels for sm_90a with deliberate faults; see faults.cu. flags: zeroed ints after
 * the 64 floats of y. */

typedef unsigned int u32;
typedef unsigned long long u64;

static __device__ u32 place(const void *p) {
    return (u32)__cvta_generic_to_shared(p);
}
static __device__ void barrier_make(u64 *bar, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(place(bar)), "r"(arrivals)
                 : "memory");
}
static __device__ void barrier_expect(u64 *bar, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(place(bar)),
                 "r"(bytes)
                 : "memory");
}
static __device__ void barrier_wait(u64 *bar, int parity) {
    u32 done;
    do {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; "
                     "selp.b32 %0, 1, 0, p; }"
                     : "=r"(done)
                     : "r"(place(bar)), "r"(parity)
                     : "memory");
    } while (!done);
}
static __device__ void load(void *to, const void *from, int bytes, u64 *bar) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(place(to)),
        "l"(from), "r"(bytes), "r"(place(bar))
        : "memory");
}
static __device__ void store(void *to, const void *from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
                 "r"(place(from)), "r"(bytes)
                 : "memory");
}
static __device__ void add(void *to, const void *from, int bytes) {
    asm volatile(
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.s32 [%0], [%1], %2;" ::"l"(to),
        "r"(place(from)), "r"(bytes)
        : "memory");
}
#define COMMIT()    asm volatile("cp.async.bulk.commit_group;" ::: "memory")
#define WAIT()      asm volatile("cp.async.bulk.wait_group 0;" ::: "memory")
#define WAIT_READ() asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory")

/* Words are read before the barrier reports that they have arrived (n 1); a barrier gets fewer
 * bytes than were announced (2), is none (3), gets more arrivals than it counts (4); a copy goes
 * to an unaligned place (5). */
extern "C" __global__ void __launch_bounds__(64) unwaited(float *y, int n) {
    __shared__ float a[68];
    __shared__ u64 bar;
    if (threadIdx.x == 0) {
        if (n != 3) {
            barrier_make(&bar, 1);
        }
        barrier_expect(&bar, n == 2 ? 512 : 256);
        if (n == 4) {
            barrier_expect(&bar, 0);
        }
        load(n == 5 ? a + 1 : a, y, 256, &bar);
        if (n != 1) {
            barrier_wait(&bar, 0);
        }
        for (int i = 0; i < 64; i++) {
            y[i] = a[i] + 1.0f;
        }
        barrier_wait(&bar, 0);
    }
}

/* The source of a copy is overwritten before it is read (n 1); or the thread leaves before the
 * copy is done (2), or without closing the group (3). */
extern "C" __global__ void __launch_bounds__(64) written_over(float *y, int n) {
    __shared__ float a[64];
    a[threadIdx.x] = 1.0f;
    __syncthreads();
    if (threadIdx.x == 0) {
        store(y, a, 256);
        if (n != 3) {
            COMMIT();
        }
        if (n == 0) {
            WAIT_READ();
        }
        for (int i = 0; i < 64 && n < 2; i++) {
            a[i] = 2.0f;
        }
        if (n != 2) {
            WAIT();
        }
    }
}

/* Block 0 adds to words and then to a count of them; block 1 reads the words once the count is
 * complete. n 0: the count is a release. n 1: the count is another adding copy, which other
 * blocks may see before the first one, whatever block 0 waits for. */
extern "C" __global__ void __launch_bounds__(64) overtaken(float *y, int n) {
    __shared__ int ones[64], one[4];
    int *const words = (int *)y;
    u32 *const count = (u32 *)words + 64;
    ones[threadIdx.x] = 1;
    one[threadIdx.x % 4] = 1;
    __syncthreads();
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        add(words, ones, 256);
        COMMIT();
        WAIT();
        if (n == 1) {
            add(count, one, 16);
            COMMIT();
            WAIT();
        } else {
            asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(count) : "memory");
        }
    }
    if (blockIdx.x == 1) {
        u32 now;
        do {
            asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(now) : "l"(count) : "memory");
        } while (now == 0);
        y[threadIdx.x] = words[threadIdx.x] == 1 ? 1.0f : 3.0f;
    }
}

/* The second block of a cluster stores the word of the first one; n 1: the first block has left
 * by then. */
extern "C" __global__ void __launch_bounds__(64) left(float *y, int n) {
    __shared__ u64 bar;
    __shared__ float word[2];
    u32 rank, there, bar_there;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    if (threadIdx.x == 0) {
        barrier_make(&bar, 1);
        barrier_expect(&bar, 8);
    }
    asm volatile(
        "barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
            : "memory");
    if (rank == 1 && threadIdx.x == 0) {
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(there)
                     : "r"(place(word)), "r"(0));
        asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                     : "=r"(bar_there)
                     : "r"(place(&bar)), "r"(0));
        asm volatile(
            "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::
                "r"(there),
            "f"(1.0f), "f"(2.0f), "r"(bar_there)
            : "memory");
    }
    if (rank == 0 && n == 0) {
        barrier_wait(&bar, 0);
        y[threadIdx.x] = word[0];
    }
}

/* 64 x 8 sums of products of ones, 16 deep, that replace what D held; y gets a sixteenth of the
 * first sum of each thread. n 1: read before the wait; 2: A is overwritten before it; 3: there is
 * no wait; 4: only one warp requests the product. */
extern "C" __global__ void __launch_bounds__(128) product(float *y, int n) {
    __shared__ __align__(1024) unsigned short a[64 * 64], b[8 * 64];
    float d[4] = {0.0f, 0.0f, 0.0f, 0.0f}, before = 0.0f;
    const u64 rows = (u64)64 << 32 | (u64)1 << 62;
    for (int i = threadIdx.x; i < 64 * 64; i += 128) {
        a[i] = 0x3f80;
        b[i % (8 * 64)] = 0x3f80;
    }
    __syncthreads();
    if (n != 4 || threadIdx.x < 32) {
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
        asm volatile("{ .reg .pred p; setp.ne.b32 p, %6, 0; "
                     "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, "
                     "%5, p, 1, 1, 0, 0; }"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "l"(rows | place(a) >> 4), "l"(rows | place(b) >> 4), "r"(0)
                     : "memory");
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        before = d[0];
        if (n == 2) {
            a[threadIdx.x * 32] = 0;
        }
        if (n != 3) {
            asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(0) : "memory");
        }
    }
    if (threadIdx.x < 64) {
        y[threadIdx.x] = (n == 1 ? before : d[0]) / 16.0f;
    }
}
