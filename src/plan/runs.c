/* runs.c: how a published benchmark was run where its page does not say:
 * recipes/clusters/runs.yaml.
 *
 * A line there reads `release.model/gpu/precision[/batch]: words`. A release lists only what
 * differs from the releases above it, so the last line at or before the release that is asked for
 * counts. A line with a batch of its own counts before the line without one. If the page prints
 * pipeline stages that this line does not have and the run's next line has, the next line counts:
 * benchmarks are run with recipes that the following tag brings. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "plan/plan.h"

typedef struct {
    const char *word;
    unsigned bit;
} named_bit;

static const named_bit graph_names[] = {{"attn", LT_PLAN_PART_ATTENTION},
                                        {"mamba", LT_PLAN_PART_MAMBA},
                                        {"mlp", LT_PLAN_PART_DENSE},
                                        {"router", LT_PLAN_PART_ROUTER},
                                        {"full", LT_PLAN_PART_ALL}};
static const named_bit again_names[] = {{"core_attn", LT_PLAN_AGAIN_CORE},
                                        {"layernorm", LT_PLAN_AGAIN_NORM},
                                        {"mla_up_proj", LT_PLAN_AGAIN_MLA_UP},
                                        {"mlp", LT_PLAN_AGAIN_DENSE},
                                        {"moe", LT_PLAN_AGAIN_MOE},
                                        {"moe_act", LT_PLAN_AGAIN_MOE_ACT},
                                        {"shared_experts", LT_PLAN_AGAIN_SHARED}};

/* "attn+router" -> its bits; *known becomes false at a name that is not in the list. */
static unsigned bits_of(const char *text, size_t len, const named_bit *names, size_t n,
                        bool *known) {
    unsigned bits = 0;
    for (size_t at = 0; at < len;) {
        const size_t word = strcspn(text + at, "+ ") < len - at ? strcspn(text + at, "+ ")
                                                                : len - at;
        bool found = false;
        for (size_t i = 0; i < n; i++) {
            if (strlen(names[i].word) == word && strncmp(text + at, names[i].word, word) == 0) {
                bits |= names[i].bit;
                found = true;
            }
        }
        *known = *known && found;
        at += word + 1;
    }
    return bits;
}

/* Length of the prefix `what` if the word starts with it, else 0. */
static size_t starts(const char *word, size_t len, const char *what) {
    const size_t n = strlen(what);
    return len >= n && strncmp(word, what, n) == 0 ? n : 0;
}

lt_err lt_plan_run_parse(lt_plan_run *out, const char *words) {
    lt_plan_run r = {0};
    for (const char *w = words; *w != 0;) {
        const size_t len = strcspn(w, " ");
        bool known = true;
        size_t n;
        if ((n = starts(w, len, "graph:")) > 0) {
            r.graph = bits_of(w + n, len - n, graph_names, sizeof graph_names / sizeof *graph_names,
                              &known);
        } else if ((n = starts(w, len, "again:")) > 0) {
            r.again = bits_of(w + n, len - n, again_names, sizeof again_names / sizeof *again_names,
                              &known);
        } else if ((n = starts(w, len, "pp:")) > 0) {
            r.pp = atoi(w + n);
            r.vpp = atoi(w + n + strcspn(w + n, "x") + 1);
            known = r.pp > 0 && r.vpp > 0 && memchr(w, 'x', len) != NULL;
        } else if ((n = starts(w, len, "mb:")) > 0) {
            r.micro = atoi(w + n);
        } else if ((n = starts(w, len, "layers:")) > 0) {
            r.again_layers = atoi(w + n);
        } else if ((n = starts(w, len, "offload:")) > 0) {
            r.offload_layers = atoi(w + n);
        } else if (starts(w, len, "hybridep") == len || starts(w, len, "deepep") == len) {
            r.dedupe = true;
        } else if (starts(w, len, "overlap") == len) {
            r.overlap = true;
        } else if (starts(w, len, "fsdp") == len) {
            r.fsdp = true;
        } else if (starts(w, len, "attn8") == len) {
            r.narrow_attention = true;
        } else {
            known = starts(w, len, "plain") == len;
        }
        if (!known) {
            LT_FAIL(LT_ERR_FORMAT, "runs.yaml: '%.*s' of '%s' is not a known word", (int)len, w,
                    words);
        }
        w += len + (w[len] == ' ');
    }
    *out = r;
    return LT_OK;
}

/* "bridge-260401" -> 260401, "bridge-2604" -> 260400; 0: no release. */
static int release_of(const char *name, size_t len) {
    const char *dash = memchr(name, '-', len);
    const int number = dash != NULL ? atoi(dash + 1) : 0;
    return number > 0 && number < 10000 ? number * 100 : number;
}

/* Whether the row of the table is this run, with this batch or with any. */
static bool names(const char *key, const char *run, int64_t batch, bool *exact) {
    const size_t len = strlen(run);
    char *end = NULL;
    *exact = false;
    if (strncmp(key, run, len) != 0) {
        return false;
    }
    if (key[len] == '/') {
        *exact = strtoll(key + len + 1, &end, 10) == batch && *end == 0;
    }
    return key[len] == 0 || *exact;
}

/* Whether the degrees agree: 0 on the page means not printed, and a recipe without stages has
 * one. */
static bool fits(const lt_plan_run *r, const lt_plan_query *q) {
    const int pp = r->pp > 0 ? r->pp : 1, vpp = r->vpp > 0 ? r->vpp : 1;
    return (q->pp == 0 || q->pp == pp) && (q->vpp == 0 || q->vpp == vpp);
}

lt_err lt_plan_run_find(lt_plan_run *out, bool *found, const char *stack, const char *run,
                        const lt_plan_query *q) {
    const lt_yaml_entry *rows = NULL;
    size_t n = 0;
    const int asked = release_of(stack, strlen(stack));
    bool found_exact = false, later = false;

    *found = false;
    LT_TRY(lt_plan_runs_table(&rows, &n));
    for (size_t i = 0; i < n && !later; i++) {
        const char *dot = strchr(rows[i].key, '.');
        const size_t family = dot != NULL ? strcspn(rows[i].key, "-") : 0;
        const int release = dot != NULL ? release_of(rows[i].key, (size_t)(dot - rows[i].key)) : 0;
        lt_plan_run r;
        bool exact;
        if (dot == NULL || strncmp(rows[i].key, stack, family) != 0 ||
            !names(dot + 1, run, q->batch_seqs, &exact)) {
            continue;
        }
        LT_TRY(lt_plan_run_parse(&r, rows[i].value));
        if (asked > 0 && release > asked) {
            later = fits(&r, q); /* Used only if no release up to the requested one fits. */
            if ((*found && fits(out, q)) || !later) {
                break;
            }
        } else if (found_exact && !exact) {
            continue;
        }
        *out = r;
        *found = true;
        found_exact = exact;
    }
    return LT_OK;
}
