/* mesh.c: ranks as points of a box; see lateen/comm.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "lateen/comm.h"

enum { PP, DP, CP, TP, N_AXES };
static const char *const axis_names[] = {"pp", "dp", "cp", "tp", "ep"};

static int *axis_of(lt_mesh_shape *s, size_t i) {
    int *const fields[] = {&s->pp, &s->dp, &s->cp, &s->tp, &s->ep};
    return fields[i];
}

lt_err lt_mesh_parse(lt_mesh_shape *out, const char *text) {
    const size_t n_names = sizeof axis_names / sizeof *axis_names;
    lt_mesh_shape s = {1, 1, 1, 1, 1};
    bool given[sizeof axis_names / sizeof *axis_names] = {false};
    const char *p = text;
    while (*p != '\0') {
        const size_t length = strcspn(p, "=,");
        size_t i = 0;
        char *end;
        long n;
        while (i < n_names &&
               (strlen(axis_names[i]) != length || strncmp(p, axis_names[i], length) != 0)) {
            i++;
        }
        if (i == n_names || p[length] != '=') {
            LT_FAIL(LT_ERR_ARG, "mesh '%s': '%.*s' is not AXIS=SIZE with an axis of pp dp cp tp ep",
                    text, (int)strcspn(p, ","), p);
        }
        if (given[i]) {
            LT_FAIL(LT_ERR_ARG, "mesh '%s': %s is given twice", text, axis_names[i]);
        }
        given[i] = true;
        p += length + 1;
        n = *p >= '0' && *p <= '9' ? strtol(p, &end, 10) : 0;
        if (n < 1 || n > LT_COMM_MAX_RANKS || (*end != '\0' && *end != ',')) {
            LT_FAIL(LT_ERR_ARG, "mesh '%s': %s=%.*s is not a size of 1 to %d", text, axis_names[i],
                    (int)strcspn(p, ","), p, LT_COMM_MAX_RANKS);
        }
        *axis_of(&s, i) = (int)n;
        p = end;
        if (*p == ',' && *++p == '\0') {
            LT_FAIL(LT_ERR_ARG, "mesh '%s': ends with a comma", text);
        }
    }
    *out = s;
    return LT_OK;
}

int64_t lt_mesh_divisor(int64_t count, int64_t n) {
    LT_ASSERT(count >= 1);
    for (int64_t off = 0;; off++) {
        if (n - off >= 1 && count % (n - off) == 0) {
            return n - off;
        }
        if (n + off <= count && count % (n + off) == 0) {
            return n + off;
        }
    }
}

lt_err lt_mesh_check(const lt_mesh_shape *s, int n_ranks) {
    const int64_t rest = (int64_t)s->pp * s->cp * s->tp, all = rest * s->dp;
    if (all != n_ranks) {
        const int64_t dp = n_ranks / rest;
        char fits[96], are[32], ep[48] = "";
        (void)snprintf(are, sizeof are, n_ranks == 1 ? "is %d rank" : "are %d ranks", n_ranks);
        if (dp >= 1) {
            (void)snprintf(fits, sizeof fits, "dp=%lld makes %lld", (long long)dp,
                           (long long)(dp * rest));
        } else {
            (void)snprintf(fits, sizeof fits, "pp, cp and tp alone need %lld", (long long)rest);
        }
        if (s->ep > 1) {
            (void)snprintf(ep, sizeof ep, " (ep=%d divides dp * cp and adds none)", s->ep);
        }
        LT_FAIL(LT_ERR_ARG, "mesh pp=%d,dp=%d,cp=%d,tp=%d has %lld place%s%s, and there %s; %s",
                s->pp, s->dp, s->cp, s->tp, (long long)all, all == 1 ? "" : "s", ep, are, fits);
    }
    if (s->dp * s->cp % s->ep != 0) {
        LT_FAIL(LT_ERR_ARG, "mesh: ep=%d does not divide dp * cp = %d * %d; ep=%lld does", s->ep,
                s->dp, s->cp, (long long)lt_mesh_divisor((int64_t)s->dp * s->cp, s->ep));
    }
    return LT_OK;
}

/* The group of the ranks whose coordinates equal this rank's on all axes that are not free; `ranks`
 * receives their list. */
static lt_err open_axes(lt_group **out, lt_comm *c, const char *name, const int sizes[N_AXES],
                        const bool is_free[N_AXES], int first, int *ranks) {
    const int size = sizes[PP] * sizes[DP] * sizes[CP] * sizes[TP];
    int at[N_AXES], n = 0;
    for (int axis = N_AXES - 1, rest = lt_comm_rank(c) - first; axis >= 0; axis--) {
        at[axis] = rest % sizes[axis];
        rest /= sizes[axis];
    }
    for (int r = 0; r < size; r++) {
        bool member = true;
        for (int axis = N_AXES - 1, rest = r; axis >= 0; axis--) {
            member = member && (is_free[axis] || rest % sizes[axis] == at[axis]);
            rest /= sizes[axis];
        }
        if (member) {
            ranks[n++] = first + r;
        }
    }
    return lt_group_open(out, c, name, ranks, n);
}

lt_err lt_mesh_open(lt_mesh *out, lt_comm *c, const lt_mesh_shape *s, int first) {
    const int sizes[N_AXES] = {s->pp, s->dp, s->cp, s->tp};
    lt_group **const groups[N_AXES] = {&out->pp, &out->dp, &out->cp, &out->tp};
    const int ep = s->ep, size = s->pp * s->dp * s->cp * s->tp;
    int plane_at, n = 0;
    lt_err err = LT_OK;
    int *ranks = NULL, *part = NULL;

    LT_ASSERT(lt_comm_rank(c) >= first && lt_comm_rank(c) < first + size);
    LT_ASSERT(first + size <= lt_comm_size(c) && s->dp * s->cp % ep == 0);
    ranks = calloc(2 * (size_t)size, sizeof *ranks);
    if (ranks == NULL) {
        LT_FAIL(LT_ERR_OOM, "mesh of %d ranks", size);
    }
    part = ranks + size;
    for (int axis = 0; axis < N_AXES; axis++) {
        bool is_free[N_AXES] = {false};
        is_free[axis] = true;
        LT_TRY_DONE(open_axes(groups[axis], c, axis_names[axis], sizes, is_free, first, ranks));
    }
    LT_TRY_DONE(open_axes(&out->world, c, "world", sizes, (const bool[]){true, true, true, true},
                          first, ranks));
    LT_TRY_DONE(open_axes(&out->grad, c, "grad", sizes, (const bool[]){false, true, true, false},
                          first, ranks));
    /* `ranks` holds the plane dp x cp in its order, in which neighbours share a set of experts. */
    plane_at = lt_group_rank(out->grad);
    for (int i = 0; i < ep; i++) {
        part[i] = ranks[plane_at / ep * ep + i];
    }
    LT_TRY_DONE(lt_group_open(&out->ep, c, "ep", part, ep));
    for (int i = plane_at % ep; i < lt_group_size(out->grad); i += ep) {
        part[n++] = ranks[i];
    }
    LT_TRY_DONE(lt_group_open(&out->edp, c, "edp", part, n));
done:
    free(ranks);
    return err;
}
