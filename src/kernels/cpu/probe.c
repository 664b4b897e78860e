/* probe.c: measures the machine (see probe.h). Every figure is the best of several short runs, so
 * that other load on the machine matters little. */
#include "kernels/cpu/probe.h"

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/limits.h"
#include "base/thread.h"
#include "kernels/host.h"
#include "kernels/peak.h"

enum { N_TRIES = 8 };

static double larger(double a, double b) {
    return a > b ? a : b;
}

typedef double flop_loop(int64_t rounds, float *sink);

/* GFLOP/s of a register loop: all threads at once for 40 ms each, in pieces of about 50 us; the sum
 * of their fastest pieces. A thread that loses its core to another program loses pieces, not the
 * measurement. */
static double best_flops(flop_loop *loop) {
    enum { ROUNDS = 20000 };
    double rate = 0.0;
#pragma omp parallel reduction(+ : rate)
    {
        float sink[3] = {0.5f, 1.0f, 0.0f};
        const double end = lt_clock_s() + 0.04;
        double best = 0.0, now = lt_clock_s();
        while (now < end) {
            const double start = now, flops = loop(ROUNDS, sink);
            now = lt_clock_s();
            best = larger(best, flops / (now - start));
        }
        rate += best;
    }
    return rate / 1e9;
}

/* Twice the last-level cache or more if memory allows: 256 MiB, or an eighth of the memory that
 * this process may use. */
static size_t buffer_bytes(void) {
    const size_t most = (size_t)256 << 20, least = (size_t)4 << 20;
    lt_limits l;
    size_t eighth;
    lt_limits_read(&l);
    eighth = l.available_bytes / 8 < most ? (size_t)(l.available_bytes / 8) : most;
    return (eighth > least ? eighth : least) & ~(size_t)4095;
}

static void copy_part(unsigned char *dst, const unsigned char *src, size_t bytes) {
#pragma omp parallel
    {
        const size_t n = (size_t)omp_get_num_threads(), me = (size_t)omp_get_thread_num();
        const size_t from = bytes / n * me, to = me + 1 == n ? bytes : bytes / n * (me + 1);
        memcpy(dst + from, src + from, to - from);
    }
}

static uint64_t read_part(const unsigned char *src, size_t bytes) {
    uint64_t sum = 0;
    const uint64_t *words = (const uint64_t *)(const void *)src;
#pragma omp parallel for reduction(+ : sum) schedule(static)
    for (size_t i = 0; i < bytes / 8; i++) {
        sum += words[i];
    }
    return sum;
}

lt_err lt_cpu_probe_memory(lt_cpu_probe *out) {
    const size_t bytes = buffer_bytes();
    void *src = NULL, *dst = NULL;
    volatile uint64_t sink = 0;
    lt_err err = LT_OK;

    LT_TRY_DONE(lt_host_map(&src, bytes, "bandwidth probe"));
    LT_TRY_DONE(lt_host_map(&dst, bytes, "bandwidth probe"));
    /* Pages that were never written all map to one zero page, which is in the cache. */
    memset(src, 1, bytes);
    copy_part(dst, src, bytes);
    for (int try = 0; try < N_TRIES; try++) {
        double start = lt_clock_s(), rate;
        copy_part(dst, src, bytes);
        rate = 2.0 * (double)bytes / (lt_clock_s() - start) / 1e9;
        out->copy_gbps = rate > out->copy_gbps ? rate : out->copy_gbps;
        start = lt_clock_s();
        sink += read_part(src, bytes);
        rate = (double)bytes / (lt_clock_s() - start) / 1e9;
        out->read_gbps = rate > out->read_gbps ? rate : out->read_gbps;
    }
done:
    lt_host_unmap(src, bytes);
    lt_host_unmap(dst, bytes);
    return err;
}

/* oneDNN's objects for one product; they are released in reverse order. */
typedef struct {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    dnnl_primitive_desc_t desc;
    dnnl_primitive_t product;
    dnnl_memory_t a, b, y;
} dnnl_product;

#define DNNL_TRY(call)                                                                             \
    if ((call) != dnnl_success) {                                                                  \
        return false;                                                                              \
    }

/* The product's description and memory. plain: matrices by rows; any: the layout that the library
 * prefers. In oneDNN 3, descriptions of memory are objects of their own. */
#if DNNL_VERSION_MAJOR >= 3
static bool product_plan(dnnl_product *p, const dnnl_dims_t dims, dnnl_data_type_t type) {
    dnnl_memory_desc_t plain = NULL, any = NULL;
    const bool ok =
        dnnl_memory_desc_create_with_tag(&plain, 2, dims, type, dnnl_ab) == dnnl_success &&
        dnnl_memory_desc_create_with_tag(&any, 2, dims, type, dnnl_format_tag_any) ==
            dnnl_success &&
        dnnl_matmul_primitive_desc_create(&p->desc, p->engine, plain, any, NULL, plain, NULL) ==
            dnnl_success &&
        dnnl_memory_create(&p->a, plain, p->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
        dnnl_memory_create(&p->b, dnnl_primitive_desc_query_md(p->desc, dnnl_query_weights_md, 0),
                           p->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success &&
        dnnl_memory_create(&p->y, plain, p->engine, DNNL_MEMORY_ALLOCATE) == dnnl_success;
    (void)dnnl_memory_desc_destroy(any);
    (void)dnnl_memory_desc_destroy(plain);
    return ok;
}
#else
static bool product_plan(dnnl_product *p, const dnnl_dims_t dims, dnnl_data_type_t type) {
    dnnl_memory_desc_t plain, any;
    dnnl_matmul_desc_t desc;
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&plain, 2, dims, type, dnnl_ab))
    DNNL_TRY(dnnl_memory_desc_init_by_tag(&any, 2, dims, type, dnnl_format_tag_any))
    DNNL_TRY(dnnl_matmul_desc_init(&desc, &plain, &any, NULL, &plain))
    DNNL_TRY(dnnl_primitive_desc_create(&p->desc, &desc, NULL, p->engine, NULL))
    any = *dnnl_primitive_desc_query_md(p->desc, dnnl_query_weights_md, 0);
    DNNL_TRY(dnnl_memory_create(&p->a, &plain, p->engine, DNNL_MEMORY_ALLOCATE))
    DNNL_TRY(dnnl_memory_create(&p->b, &any, p->engine, DNNL_MEMORY_ALLOCATE))
    DNNL_TRY(dnnl_memory_create(&p->y, &plain, p->engine, DNNL_MEMORY_ALLOCATE))
    return true;
}
#endif

/* y = a b, square. False if the library refuses it. */
static bool product_open(dnnl_product *p, dnnl_dim_t n, dnnl_data_type_t type) {
    const dnnl_dims_t dims = {n, n};
    DNNL_TRY(dnnl_engine_create(&p->engine, dnnl_cpu, 0))
    DNNL_TRY(dnnl_stream_create(&p->stream, p->engine, dnnl_stream_default_flags))
    return product_plan(p, dims, type) &&
           dnnl_primitive_create(&p->product, p->desc) == dnnl_success;
}

static void product_close(dnnl_product *p) {
    (void)dnnl_memory_destroy(p->y);
    (void)dnnl_memory_destroy(p->b);
    (void)dnnl_memory_destroy(p->a);
    (void)dnnl_primitive_destroy(p->product);
    (void)dnnl_primitive_desc_destroy(p->desc);
    (void)dnnl_stream_destroy(p->stream);
    (void)dnnl_engine_destroy(p->engine);
}

static bool product_run(const dnnl_product *p) {
    const dnnl_exec_arg_t args[] = {
        {DNNL_ARG_SRC, p->a}, {DNNL_ARG_WEIGHTS, p->b}, {DNNL_ARG_DST, p->y}};
    DNNL_TRY(dnnl_primitive_execute(p->product, p->stream, 3, args))
    DNNL_TRY(dnnl_stream_wait(p->stream))
    return true;
}

/* A small pattern of ordinary numbers replaces the allocation's contents, since denormals would be
 * slow. */
static void product_fill(dnnl_memory_t m, size_t bytes) {
    void *data = NULL;
    if (dnnl_memory_get_data_handle(m, &data) == dnnl_success && data != NULL) {
        memset(data, 0x3F, bytes); /* 0.747 in float, 0.746 in bf16. */
    }
}

static double best_onednn(dnnl_data_type_t type) {
    enum { SIDE = 1024 };
    const size_t bytes = (size_t)SIDE * SIDE * (type == dnnl_f32 ? 4 : 2);
    dnnl_product p = {0};
    double best = 0.0;

    if (product_open(&p, SIDE, type)) {
        product_fill(p.a, bytes);
        product_fill(p.b, bytes);
        for (int try = 0; try < N_TRIES; try++) {
            const double start = lt_clock_s();
            double rate;
            if (!product_run(&p)) {
                break;
            }
            rate = 2.0 * SIDE * SIDE * (double)SIDE / (lt_clock_s() - start) / 1e9;
            best = rate > best ? rate : best;
        }
    }
    product_close(&p);
    return best;
}

lt_err lt_cpu_probe_run(lt_cpu_probe *out) {
    const lt_cpu_features *f = lt_cpu_features_get();
    lt_device cpu = {.backend = lt_backend_cpu()};

    memset(out, 0, sizeof *out);
    out->n_threads = lt_thread_count();
    out->f32_gflops[LT_ISA_PORTABLE] = best_flops(lt_probe_f32_portable);
    if (f->isa >= LT_ISA_AVX2) {
        out->f32_gflops[LT_ISA_AVX2] = best_flops(lt_probe_f32_avx2);
    }
    if (f->isa >= LT_ISA_AVX512) {
        out->f32_gflops[LT_ISA_AVX512] = best_flops(lt_probe_f32_avx512);
    }
    if (f->avx512_bf16) {
        out->bf16_gflops = best_flops(lt_probe_bf16_avx512);
    }
    out->onednn_f32_gflops = best_onednn(dnnl_f32);
    out->onednn_bf16_gflops = best_onednn(dnnl_bf16);
    LT_TRY(lt_matmul_peak(&out->matmul_f32_gflops, &cpu, LT_F32));
    LT_TRY(lt_matmul_peak(&out->matmul_bf16_gflops, &cpu, LT_BF16));
    out->matmul_f32_gflops *= 1e-9;
    out->matmul_bf16_gflops *= 1e-9;
    for (int isa = 0; isa <= LT_ISA_AVX512; isa++) {
        out->peak_f32_gflops = larger(out->peak_f32_gflops, out->f32_gflops[isa]);
    }
    out->peak_f32_gflops = larger(out->peak_f32_gflops, out->onednn_f32_gflops);
    out->peak_f32_gflops = larger(out->peak_f32_gflops, out->matmul_f32_gflops);
    out->peak_bf16_gflops = larger(larger(out->bf16_gflops, out->onednn_bf16_gflops),
                                   larger(out->peak_f32_gflops, out->matmul_bf16_gflops));
    return lt_cpu_probe_memory(out);
}
