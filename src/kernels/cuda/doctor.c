/* doctor.c: see doctor.h. Copy bandwidth: 512 MiB device to device by the driver. bf16 rate: the
 * vendor's product of 8192^3 on random numbers. */
#include "kernels/cuda/doctor.h"

#include <stdio.h>

#include "base/error.h"
#include "kernels/cuda/compile.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/random_args.h"
#include "kernels/cuda/timing.h"

#define COPY_BYTES   ((size_t)512 << 20)
#define PRODUCT_SIDE 8192
#define ROUNDS       7

typedef struct {
    lt_cuda *gpu;
    lt_cublas *blas;
    void *a, *b, *d;
} bufs;

static lt_err copy_queue(void *p, CUstream s, int set) {
    const bufs *x = p;
    (void)set;
    return lt_cuda_copy(x->gpu, s, x->d, x->a, COPY_BYTES);
}

static lt_err product_queue(void *p, CUstream s, int set) {
    const bufs *x = p;
    const int64_t n = PRODUCT_SIDE;
    (void)set;
    return lt_cublas_matmul(x->blas, s,
                            &(lt_cublas_args){.m = n,
                                              .n = n,
                                              .k = n,
                                              .lda = n,
                                              .ldb = n,
                                              .ldd = n,
                                              .in = LT_CUBLAS_BF16,
                                              .out = LT_CUBLAS_BF16,
                                              .alpha = 1.0f,
                                              .a = x->a,
                                              .b = x->b,
                                              .d = x->d});
}

static lt_err fill(lt_cuda *gpu, CUstream s, void *x, uint64_t seed) {
    const lt_cuda_kernel *k;
    int64_t n = (int64_t)PRODUCT_SIDE * PRODUCT_SIDE;
    float scale = 1.0f;
    lt_cuda_random_fill_args call = {.x = x, .n = n, .seed = seed, .scale = scale};
    void *args[] = {&call};
    LT_TRY(lt_cuda_kernel_get(gpu, &k, "random.cu", "random_fill", "DTYPE=bf16 MODE=0"));
    return lt_cuda_launch(gpu, s, k, &(lt_cuda_dims){.grid = {1024}, .block = {256}}, args);
}

static lt_err measure_into(json_t *o, lt_cuda *gpu) {
    lt_err err = LT_OK;
    const double n = PRODUCT_SIDE;
    bufs x = {.gpu = gpu};
    CUstream s = NULL;
    lt_timing copy = {.name = "copy", .queue = copy_queue, .ctx = &x},
              product = {.name = "bf16 product", .queue = product_queue, .ctx = &x};
    const lt_timing_plan plan = {.n_sets = 1, .rounds = ROUNDS, .inner_ms = 1.0};

    LT_TRY_DONE(lt_cuda_stream_open(gpu, &s, false));
    LT_TRY_DONE(lt_cuda_alloc(gpu, &x.a, COPY_BYTES, "doctor"));
    LT_TRY_DONE(lt_cuda_alloc(gpu, &x.b, COPY_BYTES, "doctor"));
    LT_TRY_DONE(lt_cuda_alloc(gpu, &x.d, COPY_BYTES, "doctor"));
    LT_TRY_DONE(lt_timing_run(gpu, s, &copy, 1, &plan));
    if (copy.err == LT_OK) {
        (void)json_object_set_new(o, "copy_gbps",
                                  json_real(2.0 * (double)COPY_BYTES / copy.ms / 1e6));
    }
    if (lt_cublas_open(&x.blas, gpu) == LT_OK && fill(gpu, s, x.a, 1) == LT_OK &&
        fill(gpu, s, x.b, 2) == LT_OK) {
        LT_TRY_DONE(lt_timing_run(gpu, s, &product, 1, &plan));
        if (product.err == LT_OK) {
            (void)json_object_set_new(o, "bf16_tflops",
                                      json_real(2.0 * n * n * n / product.ms / 1e9));
        }
    }
done:
    lt_cublas_close(x.blas);
    lt_cuda_free(gpu, x.a);
    lt_cuda_free(gpu, x.b);
    lt_cuda_free(gpu, x.d);
    lt_cuda_stream_close(gpu, s);
    return err;
}

/* The other GPUs that this one reaches without the host. */
static void peers_into(json_t *o, const lt_cu_api *cu, int index) {
    json_t *all = json_array();
    int n = 0;
    (void)cu->cuDeviceGetCount(&n);
    for (int other = 0; other < n; other++) {
        int yes = 0;
        if (other != index && cu->cuDeviceCanAccessPeer(&yes, index, other) == LT_CU_SUCCESS &&
            yes != 0) {
            (void)json_array_append_new(all, json_integer(other));
        }
    }
    (void)json_object_set_new(o, "peers", all);
}

/* Without a compiler a GPU cannot be used. */
static void compiler_into(json_t *o) {
    const char *path = NULL;
    int version = 0;
    if (lt_nvrtc_version(&version, &path) == LT_OK) {
        (void)json_object_set_new(o, "nvrtc", json_integer(version));
        (void)json_object_set_new(o, "nvrtc_path", json_string(path));
    } else {
        (void)json_object_set_new(o, "nvrtc_missing", json_string(lt_error_message()));
    }
}

lt_err lt_cuda_doctor(json_t **out, lt_device *device, bool measure) {
    lt_err err = LT_OK;
    lt_cuda *gpu = lt_cuda_device_gpu(device);
    const lt_cuda_info *info = lt_cuda_get_info(gpu);
    lt_nvml_reading now;
    json_t *o;

    o = json_pack("{s:i, s:s, s:s, s:i, s:I, s:i, s:b}", "index", info->index, "name", info->name,
                  "arch", info->arch, "sms", info->n_sms, "memory_bytes",
                  (json_int_t)info->memory_bytes, "driver", info->driver_version, "ecc", info->ecc);
    if (o == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "doctor: GPU %d", info->index);
    }
    if (measure) {
        LT_TRY_DONE(measure_into(o, gpu));
    }
    /* Read after the work, so that the clocks are those under load. */
    if (lt_nvml_read(&now, info->pci) == LT_OK) {
        json_t *more = json_pack("{s:i, s:i, s:i, s:f, s:f, s:i, s:I, s:i}", "sm_mhz", now.sm_mhz,
                                 "sm_mhz_max", now.sm_mhz_max, "memory_mhz", now.memory_mhz,
                                 "power_w", now.power_w, "power_limit_w", now.power_limit_w,
                                 "temperature_c", now.temperature_c, "ecc_uncorrected",
                                 (json_int_t)now.ecc_uncorrected, "nvlinks", now.n_nvlinks);
        (void)json_object_update(o, more);
        json_decref(more);
    }
    peers_into(o, lt_cuda_api(gpu), info->index);
    compiler_into(o);
    *out = o;
    o = NULL;
done:
    json_decref(o);
    return err;
}
