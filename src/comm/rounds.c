/* rounds.c: see rounds.h. */
#include "comm/rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/rng.h"

#define REDUCE_PIECE ((size_t)512 << 10) /* Bytes; n - 1 pieces are held at once. */
#define MOVE_PIECE   ((size_t)64 << 20)  /* An MPI count is an int. */

static int tag_of(const lt_group *g, bool is_pair) {
    uint64_t h = 1469598103934665603u;
    for (const char *p = g->name; *p != '\0'; p++) {
        h = lt_rng_mix(h ^ (unsigned char)*p);
    }
    for (int i = 0; i < g->n; i++) {
        h = lt_rng_mix(h ^ (uint64_t)g->ranks[i]);
    }
    return (int)(2 + (h & 0xfffffff) * 2 + is_pair);
}

/* Groups that share members need different tags: this rank refuses two with the same tag. */
lt_err lt_rounds_group_open(lt_group *g) {
    for (const lt_group *other = g->comm->groups; other != NULL; other = other->next) {
        const bool same = other->n == g->n && strcmp(other->name, g->name) == 0 &&
                          memcmp(other->ranks, g->ranks, (size_t)g->n * sizeof *g->ranks) == 0;
        if (other->n > 1 && !same && tag_of(other, false) == tag_of(g, false)) {
            LT_FAIL(LT_ERR_ARG, "groups %s and %s have the same tag; rename one of them", g->name,
                    other->name);
        }
    }
    return LT_OK;
}

/* ---- Rounds of a collective ------------------------------------------------------------------ */

typedef struct {
    const char *send; /* To this member; NULL: none. */
    char *recv;       /* From this member. */
    size_t send_bytes, recv_bytes;
} exchange;

/* Bytes [round * piece, ...) of a message, at most a piece. */
static size_t clip(size_t bytes, int64_t round, size_t piece) {
    const size_t at = (size_t)round * piece;
    return at >= bytes ? 0 : bytes - at < piece ? bytes - at : piece;
}

static size_t shard_bytes(const lt_call *call, int i) {
    const int n = call->group->n;
    return (size_t)(lt_comm_shard(call->count, n, i + 1) - lt_comm_shard(call->count, n, i)) *
           lt_dtype_bytes(call->dtype);
}

static size_t shard_at(const lt_call *call, int i) {
    return (size_t)lt_comm_shard(call->count, call->group->n, i) * lt_dtype_bytes(call->dtype);
}

static bool reduces(const lt_call *call) {
    return call->kind == LT_CALL_ALL_REDUCE || call->kind == LT_CALL_REDUCE_SCATTER;
}

static int64_t pieces_of(size_t bytes, size_t piece) {
    return (int64_t)((bytes + piece - 1) / piece);
}

/* Rounds in which pieces are reduced: the number of pieces of the first shard, the largest. */
static int64_t reduce_rounds(const lt_call *call) {
    const size_t row = (size_t)call->count * lt_dtype_bytes(call->dtype);
    return !reduces(call) ? 0
                          : pieces_of(call->kind == LT_CALL_ALL_REDUCE ? shard_bytes(call, 0) : row,
                                      REDUCE_PIECE);
}

static size_t sum_before(const int64_t *counts, int i, lt_dtype dtype) {
    int64_t sum = 0;
    for (int j = 0; j < i; j++) {
        sum += counts[j];
    }
    return (size_t)sum * lt_dtype_bytes(dtype);
}

/* Rounds after those of the reduction. Members of an all_to_all may have different numbers of
 * rounds: a pair exchanges only the pieces of its own messages, and a round without any costs
 * nothing. */
static int64_t move_rounds(const lt_call *call) {
    const size_t elem = lt_dtype_bytes(call->dtype), row = (size_t)call->count * elem;
    int64_t most = 0;
    switch (call->kind) {
    case LT_CALL_ALL_REDUCE:
        return pieces_of(shard_bytes(call, 0), MOVE_PIECE);
    case LT_CALL_ALL_GATHER:
    case LT_CALL_BROADCAST:
        return pieces_of(row, MOVE_PIECE);
    case LT_CALL_ALL_TO_ALL:
        for (int i = 0; i < call->group->n; i++) {
            const int64_t count = call->send_counts[i] > call->recv_counts[i]
                                      ? call->send_counts[i]
                                      : call->recv_counts[i];
            const int64_t k = pieces_of((size_t)count * elem, MOVE_PIECE);
            most = k > most ? k : most;
        }
        return most;
    case LT_CALL_BARRIER:
        return 1;
    default:
        return 0;
    }
}

/* The pieces that a reducing round sends to and receives from member i. */
static exchange reduce_exchange(lt_rounds *w, const lt_call *call, int i, int64_t round) {
    const size_t row = (size_t)call->count * lt_dtype_bytes(call->dtype);
    const bool all = call->kind == LT_CALL_ALL_REDUCE;
    const int own = call->group->rank;
    const size_t at = (all ? shard_at(call, i) : (size_t)i * row) + (size_t)round * REDUCE_PIECE;
    return (exchange){
        .send = (const char *)call->src + at,
        .recv = w->scratch + (size_t)i * REDUCE_PIECE,
        .send_bytes = clip(all ? shard_bytes(call, i) : row, round, REDUCE_PIECE),
        .recv_bytes = clip(all ? shard_bytes(call, own) : row, round, REDUCE_PIECE),
    };
}

static exchange move_exchange(const lt_call *call, int i, int64_t round) {
    static char byte[2]; /* For a barrier; its contents are not read. */
    const size_t elem = lt_dtype_bytes(call->dtype), row = (size_t)call->count * elem,
                 at = (size_t)round * MOVE_PIECE;
    const int own = call->group->rank;
    const char *src = call->src;
    char *dst = call->dst;
    exchange e = {0};
    switch (call->kind) {
    case LT_CALL_ALL_REDUCE:
        e = (exchange){dst + shard_at(call, own), dst + shard_at(call, i), shard_bytes(call, own),
                       shard_bytes(call, i)};
        break;
    case LT_CALL_ALL_GATHER:
        e = (exchange){src, dst + (size_t)i * row, row, row};
        break;
    case LT_CALL_BROADCAST:
        e = (exchange){src, dst, own == call->peer ? row : 0, i == call->peer ? row : 0};
        break;
    case LT_CALL_ALL_TO_ALL:
        e = (exchange){src + sum_before(call->send_counts, i, call->dtype),
                       dst + sum_before(call->recv_counts, i, call->dtype),
                       (size_t)call->send_counts[i] * elem, (size_t)call->recv_counts[i] * elem};
        break;
    default:
        return (exchange){byte, byte + 1, 1, 1};
    }
    e.send_bytes = clip(e.send_bytes, round, MOVE_PIECE);
    e.recv_bytes = clip(e.recv_bytes, round, MOVE_PIECE);
    e.send += e.send_bytes > 0 ? at : 0;
    e.recv += e.recv_bytes > 0 ? at : 0;
    return e;
}

static lt_call_header header_of(const lt_call *call, int to) {
    return (lt_call_header){.kind = call->kind,
                            .seq = (int64_t)call->seq,
                            .count = call->count,
                            .dtype = (int64_t)call->dtype,
                            .op = (int64_t)call->op,
                            .peer = call->peer,
                            .to_you = call->kind == LT_CALL_ALL_TO_ALL ? call->send_counts[to] : 0};
}

static lt_err add_transfer(lt_rounds *w, const lt_group *g, int member, exchange e) {
    const int rank = g->ranks[member], tag = tag_of(g, false);
    lt_transfer *t;
    if (e.recv_bytes > 0) {
        t = &w->transfers[w->n_transfers++];
        *t = (lt_transfer){.rank = rank, .is_recv = true, .bytes = e.recv_bytes};
        LT_TRY(w->link->receive(w->of, e.recv, e.recv_bytes, rank, tag, &t->request));
    }
    if (e.send_bytes > 0) {
        t = &w->transfers[w->n_transfers++];
        *t = (lt_transfer){.rank = rank, .bytes = e.send_bytes};
        LT_TRY(w->link->send(w->of, e.send, e.send_bytes, rank, tag, &t->request));
    }
    return LT_OK;
}

/* Rounds are numbered from -1, which is the check. *more false: there are no more rounds. */
static lt_err begin_round(lt_rounds *w, const lt_call *call, bool *more) {
    const lt_group *g = call->group;
    const int64_t n_reduce = reduce_rounds(call), round = w->round;
    w->n_transfers = 0;
    *more = round < n_reduce + move_rounds(call);
    for (int i = 0; *more && i < g->n; i++) {
        exchange e;
        if (i == g->rank) {
            continue;
        }
        if (round < 0) {
            w->own[i] = header_of(call, i);
            e = (exchange){(const char *)&w->own[i], (char *)&w->theirs[i], sizeof *w->own,
                           sizeof *w->own};
        } else {
            e = round < n_reduce ? reduce_exchange(w, call, i, round)
                                 : move_exchange(call, i, round - n_reduce);
        }
        LT_TRY(add_transfer(w, g, i, e));
    }
    return LT_OK;
}

static lt_err compare(const lt_rounds *w, const lt_call *call) {
    const lt_group *g = call->group;
    const lt_call_header own = header_of(call, 0);
    for (int i = 0; i < g->n; i++) {
        const lt_call_header *h = &w->theirs[i];
        if (i == g->rank) {
            continue;
        }
        if (h->kind != own.kind || h->seq != own.seq || h->count != own.count ||
            h->dtype != own.dtype || h->op != own.op || h->peer != own.peer) {
            LT_FAIL(LT_ERR_REMOTE,
                    "call %lld of group %s differs: rank %d calls %s of %lld %s, rank %d calls %s "
                    "of %lld %s, its call %lld (root %lld and %lld, reduction %lld and %lld)",
                    (long long)own.seq, g->name, g->ranks[g->rank], lt_call_kind_name(call->kind),
                    (long long)own.count, lt_dtype_name(call->dtype), g->ranks[i],
                    h->kind >= 0 && h->kind < LT_CALL_KINDS
                        ? lt_call_kind_name((lt_call_kind)h->kind)
                        : "?",
                    (long long)h->count,
                    h->dtype >= 0 && h->dtype < LT_DTYPE_COUNT ? lt_dtype_name((lt_dtype)h->dtype)
                                                               : "?",
                    (long long)h->seq, (long long)own.peer, (long long)h->peer, (long long)own.op,
                    (long long)h->op);
        }
        if (call->kind == LT_CALL_ALL_TO_ALL && h->to_you != call->recv_counts[i]) {
            LT_FAIL(LT_ERR_REMOTE,
                    "all_to_all %lld of group %s: rank %d sends %lld elements to rank %d, which "
                    "awaits %lld",
                    (long long)own.seq, g->name, g->ranks[i], (long long)h->to_you,
                    g->ranks[g->rank], (long long)call->recv_counts[i]);
        }
    }
    return LT_OK;
}

/* All pieces of a reducing round have arrived: reduce them into dst. */
static void reduce_round(lt_rounds *w, const lt_call *call) {
    const void *srcs[LT_COMM_MAX_RANKS];
    const int own = call->group->rank;
    const size_t at = (size_t)w->round * REDUCE_PIECE;
    const exchange e = reduce_exchange(w, call, own, w->round);
    for (int i = 0; i < call->group->n; i++) {
        srcs[i] = w->scratch + (size_t)i * REDUCE_PIECE;
    }
    srcs[own] = e.send;
    lt_comm_reduce((char *)call->dst +
                       (call->kind == LT_CALL_ALL_REDUCE ? shard_at(call, own) : 0) + at,
                   srcs, call->group->n, (int64_t)(e.recv_bytes / lt_dtype_bytes(call->dtype)),
                   call->dtype, call->op);
}

static lt_err end_round(lt_rounds *w, const lt_call *call) {
    if (w->round < 0) {
        return compare(w, call);
    }
    if (w->round < reduce_rounds(call)) {
        reduce_round(w, call);
    }
    return LT_OK;
}

/* done: every transfer of the round has ended. A message of an unexpected size is an error. */
static lt_err test_round(lt_rounds *w, const lt_group *g, bool *done) {
    *done = true;
    for (int i = 0; i < w->n_transfers; i++) {
        lt_transfer *t = &w->transfers[i];
        size_t got = 0;
        if (t->request == NULL) {
            continue;
        }
        LT_TRY(w->link->test(w->of, &t->request, &got));
        if (t->request != NULL) {
            *done = false;
            continue;
        }
        if (t->is_recv && got != t->bytes) {
            LT_FAIL(LT_ERR_REMOTE, "group %s: rank %d sends %zu bytes where %zu are awaited",
                    g->name, t->rank, got, t->bytes);
        }
    }
    return LT_OK;
}

/* Copy the member's own part (row, segment), which needs no message. */
static void move_own(const lt_call *call) {
    if (call->kind == LT_CALL_ALL_GATHER || call->kind == LT_CALL_ALL_TO_ALL) {
        const size_t elem = lt_dtype_bytes(call->dtype);
        const int own = call->group->rank;
        const bool gather = call->kind == LT_CALL_ALL_GATHER;
        const size_t bytes = (size_t)(gather ? call->count : call->send_counts[own]) * elem;
        char *to = (char *)call->dst +
                   (gather ? (size_t)own * bytes : sum_before(call->recv_counts, own, call->dtype));
        const char *from = (const char *)call->src +
                           (gather ? 0 : sum_before(call->send_counts, own, call->dtype));
        if (to != from && bytes > 0) {
            memcpy(to, from, bytes);
        }
    }
}

static lt_err collective(lt_rounds *w, lt_call *call, bool *done) {
    bool more = true, there;
    *done = false;
    if (call->phase == 0) {
        w->round = call->group->comm->options.check ? -1 : 0;
        call->phase = 1;
        LT_TRY(begin_round(w, call, &more));
        if (more && w->round == 0) {
            move_own(call);
        }
    }
    while (more) {
        LT_TRY(test_round(w, call->group, &there));
        if (!there) {
            return LT_OK;
        }
        LT_TRY(end_round(w, call));
        w->round++;
        if (w->round == 0) {
            move_own(call);
        }
        LT_TRY(begin_round(w, call, &more));
    }
    *done = true;
    return LT_OK;
}

/* ---- Pairs ----------------------------------------------------------------------------------- */

/* A message is a sequence of pieces; phase counts those that are done. */
static lt_err pair(lt_rounds *w, lt_call *call, bool *done) {
    const lt_group *g = call->group;
    const size_t bytes = (size_t)call->count * lt_dtype_bytes(call->dtype);
    lt_transfer *t = &w->pairs[call->number % LT_COMM_AHEAD];
    const int rank = g->ranks[call->peer], tag = tag_of(g, true);

    *done = false;
    for (;;) {
        const size_t at = (size_t)call->phase * MOVE_PIECE,
                     n = clip(bytes, call->phase, MOVE_PIECE);
        size_t got = 0;
        if (t->request == NULL) {
            /* An empty message is one piece of 0 bytes. */
            if (call->phase > 0 && n == 0) {
                *done = true;
                return LT_OK;
            }
            *t = (lt_transfer){.rank = rank, .is_recv = call->kind == LT_CALL_RECV, .bytes = n};
            LT_TRY(t->is_recv
                       ? w->link->receive(w->of, (char *)call->dst + at, n, rank, tag, &t->request)
                       : w->link->send(w->of, (const char *)call->src + at, n, rank, tag,
                                       &t->request));
        }
        LT_TRY(w->link->test(w->of, &t->request, &got));
        if (t->request != NULL) {
            return LT_OK;
        }
        if (t->is_recv && got != n) {
            LT_FAIL(LT_ERR_REMOTE,
                    "message %llu of group %s: rank %d sends %zu bytes, rank %d awaits %zu",
                    (unsigned long long)call->seq, g->name, rank, got, g->ranks[g->rank], n);
        }
        call->phase++;
    }
}

void lt_rounds_missing(const lt_rounds *w, const lt_call *call, char *out, size_t out_bytes) {
    const bool is_pair = call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV;
    const lt_transfer *list = is_pair ? &w->pairs[call->number % LT_COMM_AHEAD] : w->transfers;
    const int n_list = is_pair ? 1 : w->n_transfers;
    int used = 0, n = 0, last = -1;
    out[0] = '\0';
    for (int i = 0; i < n_list && (size_t)used < out_bytes; i++) {
        if (list[i].request != NULL && list[i].rank != last) {
            used += snprintf(out + used, out_bytes - (size_t)used, "%srank %d", n++ > 0 ? ", " : "",
                             list[i].rank);
            last = list[i].rank;
        }
    }
    if ((size_t)used < out_bytes) {
        (void)snprintf(out + used, out_bytes - (size_t)used, " did not come");
    }
}

lt_advance lt_rounds_advance(lt_rounds *w, lt_call *call) {
    const bool is_pair = call->kind == LT_CALL_SEND || call->kind == LT_CALL_RECV;
    bool done = false;
    const lt_err err = is_pair ? pair(w, call, &done) : collective(w, call, &done);
    return err != LT_OK ? LT_ADVANCE_FAILED : done ? LT_ADVANCE_DONE : LT_ADVANCE_WAITING;
}

lt_err lt_rounds_open(lt_rounds *w, const lt_link *link, void *of, int size) {
    *w = (lt_rounds){.link = link, .of = of, .size = size};
    w->transfers = calloc(2 * (size_t)size, sizeof *w->transfers);
    w->scratch = malloc((size_t)size * REDUCE_PIECE);
    w->own = calloc(2 * (size_t)size, sizeof *w->own);
    if (w->transfers == NULL || w->scratch == NULL || w->own == NULL) {
        lt_rounds_close(w);
        LT_FAIL(LT_ERR_OOM, "messages of %d ranks", size);
    }
    w->theirs = w->own + size;
    return LT_OK;
}

void lt_rounds_close(lt_rounds *w) {
    free(w->transfers);
    free(w->scratch);
    free(w->own);
    *w = (lt_rounds){0};
}
