/* nccl_check.c: compares what all ranks call, through the host world. NCCL compares nothing, and
 * ranks whose calls differ would hang in it; the comparison ends the world and names them. */
#include <string.h>

#include "base/error.h"
#include "comm/nccl_world.h"

static int64_t *headers(const lt_nccl_world *w, int64_t *of, size_t place) {
    return of + place * (size_t)w->host->size * LT_NCCL_HEADER_WORDS;
}

lt_err lt_nccl_check_begin(lt_nccl_world *w, const lt_call *call) {
    const lt_group *g = call->group;
    const size_t place = lt_nccl_place(call);
    int64_t *own = headers(w, w->own, place);
    for (int i = 0; i < g->n; i++) {
        const bool a2a = call->kind == LT_CALL_ALL_TO_ALL;
        const int64_t header[LT_NCCL_HEADER_WORDS] = {call->kind,
                                                      (int64_t)call->seq,
                                                      call->count,
                                                      (int64_t)call->dtype,
                                                      (int64_t)call->op,
                                                      call->peer,
                                                      a2a ? call->send_counts[i] : 0};
        memcpy(own + i * LT_NCCL_HEADER_WORDS, header, sizeof header);
        w->counts[i] = LT_NCCL_HEADER_WORDS;
    }
    w->checked[place] = false;
    return lt_all_to_all(((lt_nccl_group *)g->shared)->twin, headers(w, w->theirs, place),
                         w->counts, own, w->counts, LT_I64, &w->exchanges[place]);
}

static const char *kind_name(int64_t kind) {
    return kind >= 0 && kind < LT_CALL_KINDS ? lt_call_kind_name((lt_call_kind)kind) : "?";
}

static const char *type_name(int64_t dtype) {
    return dtype >= 0 && dtype < LT_DTYPE_COUNT ? lt_dtype_name((lt_dtype)dtype) : "?";
}

static lt_err compare(const lt_nccl_world *w, const lt_call *call) {
    const lt_group *g = call->group;
    const int64_t *own = headers(w, w->own, lt_nccl_place(call)),
                  *theirs = headers(w, w->theirs, lt_nccl_place(call));
    for (int i = 0; i < g->n; i++) {
        const int64_t *h = theirs + i * LT_NCCL_HEADER_WORDS;
        if (memcmp(h, own, 6 * sizeof *h) != 0) {
            LT_FAIL(LT_ERR_REMOTE,
                    "call %llu of group %s differs: rank %d calls %s of %lld %s, rank %d calls %s "
                    "of %lld %s, its call %lld (root %lld and %lld, reduction %lld and %lld)",
                    (unsigned long long)call->seq, g->name, g->ranks[g->rank],
                    lt_call_kind_name(call->kind), (long long)call->count,
                    lt_dtype_name(call->dtype), g->ranks[i], kind_name(h[0]), (long long)h[2],
                    type_name(h[3]), (long long)h[1], (long long)own[5], (long long)h[5],
                    (long long)own[4], (long long)h[4]);
        }
        if (call->kind == LT_CALL_ALL_TO_ALL && h[6] != call->recv_counts[i]) {
            LT_FAIL(LT_ERR_REMOTE,
                    "all_to_all %llu of group %s: rank %d sends %lld elements to rank %d, which "
                    "awaits %lld",
                    (unsigned long long)call->seq, g->name, g->ranks[i], (long long)h[6],
                    g->ranks[g->rank], (long long)call->recv_counts[i]);
        }
    }
    return LT_OK;
}

/* done: the other ranks' calls are known, and are the same. */
lt_err lt_nccl_check_advance(lt_nccl_world *w, const lt_call *call, bool *done) {
    const size_t place = lt_nccl_place(call);
    *done = w->checked[place];
    if (!*done && lt_comm_done(w->host, w->exchanges[place])) {
        LT_TRY(lt_comm_wait(w->host, w->exchanges[place])); /* The exchange may have failed. */
        LT_TRY(compare(w, call));
        *done = w->checked[place] = true;
    }
    return LT_OK;
}
