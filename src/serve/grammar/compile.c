/* grammar/compile.c: compiles rules to one program: inlines rules into their callers, makes the
 * automaton of each rule, removes dead ends, refuses left recursion, and groups bytes that no edge
 * distinguishes into classes. */
#include "serve/grammar/impl.h"

#include <stdlib.h>
#include <string.h>

#include "serve/grammar/language.h"

#define INLINE_STATES 300   /* Rules up to this size are inlined into their callers, */
#define INLINE_BUDGET 20000 /* and up to this size if they do not recurse and are used once. */

void lt_gprogram_free(lt_gprogram *p) {
    lt_gdfa_free(&p->d);
    free(p->loop_min);
    free(p->loop_max);
    free(p->loop_start);
    free(p->tail);
    free(p->marks);
    free(p->plain);
    free(p->counts);
    *p = (lt_gprogram){0};
}

/* Compute the sizes of rules from the leaves up; those without a size at the end are recursive, or
 * call recursive rules. */
static lt_err plan_rules(lt_gplan *p) {
    lt_gast *g = p->ast;
    int32_t *uses = calloc(g->n_rules + 1, sizeof *uses);
    bool changed = true;
    p->inlined = calloc(g->n_rules + 1, sizeof *p->inlined);
    p->sizes = malloc((g->n_rules + 1) * sizeof *p->sizes);
    if (uses == NULL || p->inlined == NULL || p->sizes == NULL) {
        free(uses);
        LT_FAIL(LT_ERR_OOM, "grammar: %zu rules", g->n_rules);
    }
    for (size_t i = 0; i < g->n_rules; i++) {
        p->sizes[i] = INT32_MAX;
    }
    for (size_t i = 0; i < g->n_nodes; i++) {
        if (g->nodes[i].kind == LT_GNODE_RULE) {
            uses[g->nodes[i].a]++;
        }
    }
    for (int round = 0; changed && round < 1000; round++) {
        changed = false;
        for (size_t i = g->n_rules; i-- > 0;) {
            if (p->sizes[i] == INT32_MAX) {
                p->sizes[i] = lt_gplan_size(p, g->rules[i].body, 0);
                changed = changed || p->sizes[i] != INT32_MAX;
            }
        }
    }
    for (size_t i = 0; i < g->n_rules; i++) {
        p->inlined[i] = !g->rules[i].keep && (p->sizes[i] <= INLINE_STATES ||
                                              (uses[i] == 1 && p->sizes[i] <= INLINE_BUDGET));
    }
    free(uses);
    return LT_OK;
}

static lt_err append(lt_gprogram *p, const lt_gdfa *d) {
    const int32_t base = (int32_t)p->d.n_states;
    for (size_t i = 0; i < d->n_states; i++) {
        lt_gstate s = d->states[i];
        if (!LT_GROW(&p->d, states)) {
            return LT_ERR_OOM;
        }
        s.edge = (int32_t)p->d.n_edges;
        s.call = (int32_t)p->d.n_calls;
        for (int32_t k = 0; k < s.n_edges; k++) {
            lt_gedge e = d->edges[d->states[i].edge + k];
            if (!LT_GROW(&p->d, edges)) {
                return LT_ERR_OOM;
            }
            e.to += base;
            p->d.edges[p->d.n_edges++] = e;
        }
        for (int32_t k = 0; k < s.n_calls; k++) {
            lt_gcall c = d->calls[d->states[i].call + k];
            if (!LT_GROW(&p->d, calls)) {
                return LT_ERR_OOM;
            }
            c.to += base;
            p->d.calls[p->d.n_calls++] = c;
        }
        p->d.states[p->d.n_states++] = s;
    }
    return LT_OK;
}

/* Set the marks and counts of the states from `start` on, which belong to one rule. */
static lt_err mark(lt_gprogram *p, const lt_gdfa *d, const lt_grule *rule, int32_t start) {
    const size_t n = p->d.n_states + 1;
    uint8_t *marks = realloc(p->marks, n * sizeof *marks);
    int64_t *counts;
    if (marks != NULL) {
        p->marks = marks;
    }
    counts = marks != NULL ? realloc(p->counts, n * sizeof *counts) : NULL;
    if (counts == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: %zu states", n);
    }
    p->counts = counts;
    memset(marks + start, rule != NULL && rule->names ? LT_GMARK_NAMES : 0, n - (size_t)start);
    for (size_t i = (size_t)start; i < n; i++) {
        counts[i] = -1;
    }
    if (rule == NULL) {
        return LT_OK;
    }
    marks[start] |= rule->json ? LT_GMARK_JSON : 0;
    marks[start] |= rule->unique ? LT_GMARK_UNIQUE : 0;
    if (rule->names) {
        LT_TRY(lt_gdfa_counts(d, LT_GMANY, counts + start));
        p->has_names = true;
        for (size_t i = 0; i < d->n_states; i++) {
            p->few_names = p->few_names ||
                           (counts[(size_t)start + i] > 1 && counts[(size_t)start + i] < LT_GMANY);
        }
    }
    return LT_OK;
}

/* Compile one tree (of a rule; NULL: of a loop) and put it behind the others; *start: its first
 * state. */
static lt_err compile_one(lt_gprogram *p, lt_gplan *plan, lt_gid body, const lt_grule *rule,
                          int32_t *start) {
    lt_gdfa d = {0};
    lt_err err = LT_OK;
    *start = (int32_t)p->d.n_states;
    LT_TRY(rule != NULL && rule->names ? lt_gdfa_regular(&d, plan, body)
                                       : lt_gdfa_build(&d, plan, body));
    LT_TRY_DONE(append(p, &d));
    LT_TRY_DONE(mark(p, &d, rule, *start));
done:
    lt_gdfa_free(&d);
    return err;
}

/* Compile all rules that are called, and loops; callees become start states. */
static lt_err compile_rules(lt_gprogram *p, lt_gplan *plan) {
    lt_err err = LT_OK;
    int32_t *starts = malloc((plan->ast->n_rules + 1) * sizeof *starts);
    int32_t *loop_starts = NULL;
    size_t loops_room = 0, loops_done = 0;

    if (starts == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: %zu rules", plan->ast->n_rules);
    }
    memset(starts, 0xFF, (plan->ast->n_rules + 1) * sizeof *starts);
    LT_TRY_DONE(compile_one(p, plan, plan->ast->rules[plan->ast->root].body,
                            &plan->ast->rules[plan->ast->root], &p->start));
    starts[plan->ast->root] = p->start;
    for (size_t i = 0; i < p->d.n_calls || loops_done < plan->n_loops;) {
        if (loops_done < plan->n_loops) {
            if (!lt_grow((void **)&loop_starts, loops_done, &loops_room, sizeof *loop_starts)) {
                err = LT_ERR_OOM;
                goto done;
            }
            LT_TRY_DONE(
                compile_one(p, plan, plan->loops[loops_done].body, NULL, &loop_starts[loops_done]));
            loops_done++;
            continue;
        }
        const int32_t callee = p->d.calls[i].callee;
        if (callee >= 0) {
            if (starts[callee] < 0) {
                LT_TRY_DONE(compile_one(p, plan, plan->ast->rules[callee].body,
                                        &plan->ast->rules[callee], &starts[callee]));
            }
            p->d.calls[i].callee = starts[callee];
        }
        i++;
    }
    p->n_loops = loops_done;
    p->loop_start = loop_starts;
    loop_starts = NULL;
    p->loop_min = calloc(loops_done + 1, sizeof *p->loop_min);
    p->loop_max = calloc(loops_done + 1, sizeof *p->loop_max);
    if (p->loop_min == NULL || p->loop_max == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "grammar: %zu loops", loops_done);
    }
    for (size_t i = 0; i < loops_done; i++) {
        p->loop_min[i] = plan->loops[i].min;
        p->loop_max[i] = plan->loops[i].max;
    }
done:
    free(starts);
    free(loop_starts);
    return err;
}

static int32_t callee_start(const lt_gprogram *p, int32_t callee) {
    return callee >= 0 ? callee : p->loop_start[~callee];
}

/* live: some text leads from the state to an accepting state of its rule. */
static lt_err cut_dead_ends(lt_gprogram *p) {
    const size_t n = p->d.n_states;
    bool *live = calloc(n + 1, sizeof *live), changed = true;
    if (live == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: %zu states", n);
    }
    while (changed) {
        changed = false;
        for (size_t i = n; i-- > 0;) {
            const lt_gstate *s = &p->d.states[i];
            bool is = s->accept;
            for (int32_t k = 0; k < s->n_edges && !is; k++) {
                is = live[p->d.edges[s->edge + k].to];
            }
            for (int32_t k = 0; k < s->n_calls && !is; k++) {
                const lt_gcall *c = &p->d.calls[s->call + k];
                is = live[c->to] && (live[callee_start(p, c->callee)] ||
                                     (c->callee < 0 && p->loop_min[~c->callee] == 0));
            }
            if (is && !live[i]) {
                live[i] = true;
                changed = true;
            }
        }
    }
    for (size_t i = 0; i < n; i++) {
        lt_gstate *s = &p->d.states[i];
        int32_t kept = 0;
        for (int32_t k = 0; k < s->n_edges; k++) {
            if (live[p->d.edges[s->edge + k].to]) {
                p->d.edges[s->edge + kept++] = p->d.edges[s->edge + k];
            }
        }
        s->n_edges = kept;
        kept = 0;
        for (int32_t k = 0; k < s->n_calls; k++) {
            const lt_gcall c = p->d.calls[s->call + k];
            if (live[c.to] && (live[callee_start(p, c.callee)] || c.callee < 0)) {
                p->d.calls[s->call + kept++] = c;
            }
        }
        s->n_calls = kept;
    }
    const bool any = live[p->start];
    free(live);
    if (!any) {
        LT_FAIL(LT_ERR_FORMAT, "grammar: no text matches");
    }
    return LT_OK;
}

static bool may_be_empty(const lt_gprogram *p, const bool *nullable, const lt_gcall *c) {
    return nullable[callee_start(p, c->callee)] || (c->callee < 0 && p->loop_min[~c->callee] == 0);
}

/* nullable[i]: the rule may end in state i without another byte. */
static void find_nullable(const lt_gprogram *p, bool *nullable) {
    bool changed = true;
    while (changed) {
        changed = false;
        for (size_t i = p->d.n_states; i-- > 0;) {
            bool is = p->d.states[i].accept;
            for (int32_t k = 0; k < p->d.states[i].n_calls && !is; k++) {
                const lt_gcall *c = &p->d.calls[p->d.states[i].call + k];
                is = nullable[c->to] && may_be_empty(p, nullable, c);
            }
            changed = changed || is != nullable[i];
            nullable[i] = is;
        }
    }
}

/* A place of the search below: the next step of a state. */
typedef struct {
    int32_t state, step;
} place;

/* Where a step leads without a byte: into the callee of call step / 2 if step is even, behind that
 * call if step is odd and the callee may be empty; -1: nowhere. */
static int32_t step_to(const lt_gprogram *p, const bool *nullable, place at) {
    const lt_gcall *c = &p->d.calls[p->d.states[at.state].call + at.step / 2];
    if (at.step % 2 == 0) {
        return callee_start(p, c->callee);
    }
    return may_be_empty(p, nullable, c) ? c->to : -1;
}

/* part[i]: states with the same number reach each other without a byte (Tarjan 1972). seen, which
 * is 0 everywhere, low, open and trail have room for all states. */
static void find_parts(const lt_gprogram *p, const bool *nullable, int32_t *part, int32_t *seen,
                       int32_t *low, int32_t *open, place *trail) {
    int32_t n_seen = 0, n_parts = 0;
    size_t n_open = 0;
    for (size_t i = 0; i < p->d.n_states; i++) {
        size_t depth = 0;
        int32_t next = seen[i] == 0 ? (int32_t)i : -1;
        while (next >= 0 || depth > 0) {
            place *at;
            if (next >= 0) { /* A new state. */
                seen[next] = low[next] = ++n_seen;
                part[next] = -1;
                open[n_open++] = next;
                trail[depth++] = (place){next, 0};
            }
            at = &trail[depth - 1];
            next = -1;
            if (at->step < 2 * p->d.states[at->state].n_calls) {
                const int32_t to = step_to(p, nullable, *at);
                if (to >= 0 && seen[to] == 0) {
                    next = to; /* The step is looked at again when this state is done. */
                    continue;
                }
                if (to >= 0 && part[to] < 0 && low[to] < low[at->state]) {
                    low[at->state] = low[to];
                }
                at->step++;
                continue;
            }
            if (low[at->state] == seen[at->state]) {
                do {
                    part[open[--n_open]] = n_parts;
                } while (open[n_open] != at->state);
                n_parts++;
            }
            depth--;
        }
    }
}

/* A call that can reach itself before a byte is read would never end. A repetition of a rule that
 * may be empty comes back to its own state as well, but with the same stack, so it ends. */
static lt_err refuse_left_recursion(const lt_gprogram *p) {
    const size_t n = p->d.n_states;
    bool *nullable = calloc(n + 1, sizeof *nullable);
    int32_t *seen = calloc(n + 1, sizeof *seen), *more = malloc((n + 1) * 3 * sizeof *more);
    place *trail = malloc((n + 1) * sizeof *trail);
    lt_err err = LT_OK;

    if (nullable == NULL || seen == NULL || more == NULL || trail == NULL) {
        LT_FAIL_DONE(LT_ERR_OOM, "grammar: %zu states", n);
    }
    find_nullable(p, nullable);
    for (size_t i = 0; i < p->n_loops; i++) {
        if (nullable[p->loop_start[i]]) {
            LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                         "grammar: a repetition of %d to %d of what may be empty", p->loop_min[i],
                         p->loop_max[i]);
        }
    }
    find_parts(p, nullable, more, seen, more + n, more + 2 * n, trail);
    for (size_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < p->d.states[i].n_calls; k++) {
            const lt_gcall *c = &p->d.calls[p->d.states[i].call + k];
            if (more[i] == more[callee_start(p, c->callee)]) {
                LT_FAIL_DONE(LT_ERR_UNSUPPORTED,
                             "grammar: a rule that begins with itself (left recursion)");
            }
        }
    }
done:
    free(nullable);
    free(seen);
    free(more);
    free(trail);
    return err;
}

static lt_err make_classes(lt_gprogram *p) {
    bool cut[257] = {false};
    int class = -1;
    for (size_t i = 0; i < p->d.n_states; i++) {
        for (int32_t k = 0; k < p->d.states[i].n_edges; k++) {
            const lt_gedge *e = &p->d.edges[p->d.states[i].edge + k];
            cut[e->lo] = true;
            cut[e->hi + 1] = true;
        }
    }
    cut[0] = true;
    for (int b = 0; b < 256; b++) {
        if (cut[b]) {
            p->sample[++class] = (uint8_t)b;
        }
        p->classes[b] = (uint8_t) class;
    }
    p->n_classes = class + 1;
    p->tail = calloc(p->d.n_states + 1, sizeof *p->tail);
    p->plain = malloc((p->d.n_states + 1) * sizeof *p->plain);
    if (p->tail == NULL || p->plain == NULL) {
        LT_FAIL(LT_ERR_OOM, "grammar: %zu states", p->d.n_states);
    }
    for (size_t i = 0; i < p->d.n_states; i++) {
        const lt_gstate *s = &p->d.states[i];
        p->tail[i] = s->accept && s->n_edges == 0 && s->n_calls == 0;
        p->plain[i] = -3; /* -3: not yet known. */
    }
    return LT_OK;
}

lt_err lt_gprogram_compile(lt_gprogram *out, lt_gast *ast) {
    lt_err err = LT_OK;
    lt_gplan plan = {.ast = ast};

    LT_TRY(lt_gast_check(ast));
    for (size_t i = 0; i < ast->n_rules; i++) {
        if (ast->rules[i].body < 0) {
            LT_FAIL(LT_ERR_FORMAT, "grammar: rule '%s' is used but not defined",
                    ast->rules[i].name != NULL ? ast->rules[i].name : "?");
        }
    }
    *out = (lt_gprogram){0};
    LT_TRY_DONE(plan_rules(&plan));
    LT_TRY_DONE(compile_rules(out, &plan));
    LT_TRY_DONE(cut_dead_ends(out));
    LT_TRY_DONE(refuse_left_recursion(out));
    LT_TRY_DONE(make_classes(out));
done:
    free(plan.inlined);
    free(plan.sizes);
    free(plan.loops);
    if (err != LT_OK) {
        lt_gprogram_free(out);
    }
    return err;
}
