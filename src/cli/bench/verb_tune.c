/* verb_tune.c: `lateen tune sgemm|gemm`: finds the fastest kernel for a product on this GPU and
 * records it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "cli/platform/copying.h"
#include "cli/read_lines.h"
#include "cli/verb.h"
#include "kernels/cuda/gemm/gemm.h"
#include "kernels/cuda/ops/launch.h"
#include "kernels/cuda/sgemm/sgemm.h"
#include "model/pass/loss.h"
#include "model/params.h"
#include "model/pass/pass.h"

#define TUNE_OPTIONS(X)                                                                            \
    X(I64, m, "m", "4096", 1, 1e6, "rows", "rows of A and C")                                      \
    X(I64, n, "n", "4096", 1, 1e6, "columns", "columns of B and C")                                \
    X(I64, k, "k", "4096", 1, 1e6, "length", "columns of A and rows of B")                         \
    X(F64, seconds, "seconds", "300", 1, 86400, "s",                                               \
      "sgemm: stop the first round of runs after this long")                                       \
    X(ENUM, layout, "layout", "nt", 0, 0, "nn|nt|tn|tt",                                           \
      "gemm: n as in the product, t transposed; nt is a linear layer's forward")                   \
    X(ENUM, out, "out", "bf16", 0, 0, "bf16|fp32", "gemm: type of C")                              \
    X(BOOL, accumulate, "accumulate", "false", 0, 0, "", "gemm: C += A B")                         \
    X(STR, model, "model", "", 0, 0, "FILE",                                                       \
      "gemm: tune the products of the model with this config.json instead of one product")         \
    X(STR, rows, "rows", "", 0, 0, "list",                                                         \
      "gemm: tokens of micro-batches; tunes the model's forward and backward products")            \
    X(STR, serve, "serve", "1,2,4,8,16,32,64,128,256", 0, 0, "list",                               \
      "gemm: sequences that decode at once; tunes the model's forward products")

typedef struct {
    TUNE_OPTIONS(LT_OPTION_FIELD)
} tune_options;
#define LT_OPTION_STRUCT tune_options
static const lt_option rows[] = {TUNE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_tune_options = LT_OPTION_TABLE("tune", rows);

/* Forward, and with `train` both backward products, of one linear layer over m rows. */
static lt_err tune_layer(lt_device *device, const lt_model_spec *spec, lt_param_kind kind,
                         lt_param_kind bias, int64_t m, bool train) {
    int64_t shape[3], none[3];
    lt_gemm_product p;

    if (lt_param_shape(spec, kind, 0, shape) != 2) {
        return LT_OK; /* Absent, or experts, whose products have a separate kernel. */
    }
    const int64_t n = shape[0], k = shape[1];
    const bool head = kind == LT_PARAM_HEAD || kind == LT_PARAM_EMBED;
    p = (lt_gemm_product){.m = m, .n = n, .k = k, .trans_b = true, .f32 = head && !train};
    p.bias = bias != LT_PARAM_KIND_COUNT && lt_param_shape(spec, bias, 0, none) > 0;
    LT_TRY(lt_gemm_tune(stdout, device, &p));
    if (!train) {
        return LT_OK;
    }
    p = (lt_gemm_product){.m = m, .n = k, .k = n};
    LT_TRY(lt_gemm_tune(stdout, device, &p));
    p = (lt_gemm_product){.m = n, .n = k, .k = m, .trans_a = true, .f32 = true, .accumulate = true};
    return lt_gemm_tune(stdout, device, &p);
}

static lt_err tune_rows(lt_device *device, const lt_model_spec *spec, int64_t m, bool train) {
    const lt_pass_options pass = {.batch = 1, .seq = m, .train = true, .on_device = true};
    lt_loss loss = {0};
    lt_arena arena = {0};

    lt_loss_carve(&loss, spec, LT_BF16, &pass, spec->vocab_size, &arena);
    LT_TRY(tune_layer(device, spec, LT_PARAM_QKV, LT_PARAM_QKV_BIAS, m, train));
    LT_TRY(tune_layer(device, spec, LT_PARAM_ATTN_OUT, LT_PARAM_ATTN_OUT_BIAS, m, train));
    LT_TRY(tune_layer(device, spec, LT_PARAM_UP, LT_PARAM_UP_BIAS, m, train));
    LT_TRY(tune_layer(device, spec, LT_PARAM_DOWN, LT_PARAM_DOWN_BIAS, m, train));
    return tune_layer(device, spec, spec->tied ? LT_PARAM_EMBED : LT_PARAM_HEAD,
                      LT_PARAM_KIND_COUNT, train ? loss.chunk_rows : m, train);
}

static lt_err tune_list(lt_device *device, const lt_model_spec *spec, const char *list,
                        const char *name, bool train) {
    while (*list != '\0') {
        const char *from = list;
        long long m;
        if (!lt_cli_next_number(&list, &m) || m < 1 || m > 1000000) {
            LT_FAIL(LT_ERR_ARG, "tune gemm: --%s: '%s' does not begin with a number of rows", name,
                    from);
        }
        LT_TRY(tune_rows(device, spec, m, train));
    }
    return LT_OK;
}

static lt_err tune_gemm(lt_device *device, const tune_options *o) {
    lt_model_spec spec;

    if (o->model[0] != '\0') {
        char path[LT_PATH_BYTES];
        LT_TRY(lt_cli_bring(path, o->model));
        LT_TRY(lt_model_spec_read(&spec, path));
    }
    if (o->model[0] == '\0') {
        return lt_gemm_tune(stdout, device,
                            &(lt_gemm_product){.m = o->m,
                                               .n = o->n,
                                               .k = o->k,
                                               .trans_a = o->layout >= 2,
                                               .trans_b = o->layout % 2 == 1,
                                               .f32 = o->out == 1,
                                               .accumulate = o->accumulate});
    }
    LT_TRY(tune_list(device, &spec, o->rows, "rows", true));
    return tune_list(device, &spec, o->serve, "serve", false);
}

static lt_err tune_sgemm(lt_device *device, const tune_options *o) {
    return lt_sgemm_tune(stdout, lt_cuda_device_gpu(device), (int)o->m, (int)o->n, (int)o->k,
                         o->seconds);
}

static const struct {
    const char *name;
    lt_err (*run)(lt_device *device, const tune_options *o);
} kernels[] = {{"sgemm", tune_sgemm}, {"gemm", tune_gemm}};

int lt_verb_tune(int argc, char **argv);
int lt_verb_tune(int argc, char **argv) {
    static const char prose[] = "Try every tile of a kernel on this GPU and record the fastest. "
                                "sgemm: FP32, for the class of the shape. gemm: BF16, Lateen's "
                                "tiles and cuBLASLt's proposals, for exactly the products given.";
    tune_options o;
    const char *what[1] = {""};
    int n = 0, status = LT_EXIT_DONE;
    if (!lt_verb_parse(&lt_verb_tune_options, &o, argc, argv,
                       "tune sgemm|gemm [--m M --n N --k K | --model FILE --rows N]", prose, what,
                       1, &n, &status)) {
        return status;
    }
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        if (strcmp(what[0], kernels[i].name) == 0) {
            lt_device *device = NULL;
            lt_err err = lt_device_open(&device, LT_DEVICE_CUDA, LT_DEVICE_DEFAULT);
            err = err == LT_OK ? kernels[i].run(device, &o) : err;
            lt_device_close(device);
            return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
        }
    }
    fprintf(stderr, "lateen: tune needs sgemm or gemm\n");
    return LT_EXIT_USAGE;
}
