/* launched.c: see launched.h. */
#include "comm/launched.h"

#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "comm/shm.h"

#define OPEN_S 60.0 /* Plus one second for each hundred ranks. */

double lt_launched_open_s(const lt_launched *l) {
    return OPEN_S + (double)l->n * 0.01;
}

static lt_err read_number(const char *name, uint64_t most, uint64_t *out) {
    const char *text = getenv(name);
    char *end = NULL;
    *out = text != NULL && *text >= '0' && *text <= '9' ? strtoull(text, &end, 10) : 0;
    if (end == NULL || *end != '\0' || *out > most) {
        LT_FAIL(LT_ERR_ARG, "%s='%s' is not a value that lateen launch sets", name,
                text != NULL ? text : "");
    }
    return LT_OK;
}

static double read_seconds(const char *name) {
    const char *text = getenv(name);
    const double s = text != NULL ? atof(text) : 0.0;
    return s > 0.0 ? s : 0.0;
}

double lt_launched_silent_s(void) {
    return read_seconds(LT_ENV_BEAT) > 0.0 ? read_seconds(LT_ENV_SILENT) : 0.0;
}

bool lt_comm_under_launch(void) {
    return getenv(LT_ENV_SEGMENT) != NULL;
}

bool lt_launched_apart(void) {
    const char *segment = getenv(LT_ENV_SEGMENT);
    return segment != NULL && strcmp(segment, LT_SEGMENT_TCP) == 0;
}

lt_err lt_launched_read(lt_launched *l) {
    uint64_t n, rank, fd = 0;
    *l = (lt_launched){.address = getenv(LT_ENV_STORE), .token = getenv(LT_ENV_TOKEN)};
    LT_TRY(read_number(LT_ENV_RANKS, LT_SHM_MOST_RANKS, &n));
    LT_TRY(read_number(LT_ENV_RANK, n > 0 ? n - 1 : 0, &rank));
    LT_TRY(lt_launched_apart() ? LT_OK : read_number(LT_ENV_SEGMENT, 1 << 20, &fd));
    LT_TRY(read_number(LT_ENV_EPOCH, UINT64_MAX, &l->epoch));
    if (n == 0 || l->address == NULL || l->token == NULL) {
        LT_FAIL(LT_ERR_ARG, "%s without %s, %s and %s; lateen launch sets all four", LT_ENV_SEGMENT,
                LT_ENV_RANKS, LT_ENV_STORE, LT_ENV_TOKEN);
    }
    l->n = (int)n;
    l->rank = (int)rank;
    l->segment = lt_launched_apart() ? -1 : (int)fd;
    return LT_OK;
}

lt_err lt_launched_join(lt_comm_store **out, const lt_launched *l) {
    return lt_comm_store_open(out, l->address, l->token, l->rank, l->epoch, OPEN_S);
}

static void on_notice(void *ctx, const char *text) {
    lt_comm_abort(ctx, text);
}

lt_err lt_launched_begin(lt_comm_store *store, const lt_launched *l, lt_comm *c) {
    LT_TRY(lt_comm_store_live(store, read_seconds(LT_ENV_BEAT), read_seconds(LT_ENV_SILENT),
                              on_notice, c));
    LT_TRY(lt_comm_store_barrier(store, "open", l->n, lt_launched_open_s(l)));
    /* Programs that a rank starts must not take themselves for ranks. */
    (void)unsetenv(LT_ENV_SEGMENT);
    return LT_OK;
}
