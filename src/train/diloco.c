/* diloco.c: see diloco.h. */
#include "train/diloco.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <xxhash.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "model/alloc.h"
#include "train/run.h"

#define LOOK_NS   20000000L /* Interval between checks whether all ranks have read a round. */
#define MIB       1048576.0
#define HOST_ROOM 4 /* Parameters on a GPU are changed in copies: sum, own, outer, momentum. */

/* ---- Which site ---- */

static lt_err find_site(lt_recipe *r, const lt_world *w) {
    const int world = w->comm != NULL ? lt_comm_size(w->comm) : 1;
    if (r->site >= 0) {
        return LT_OK;
    }
    if (world == 1) {
        LT_FAIL(LT_ERR_ARG,
                "diloco.sites = %lld, and this process is one rank alone: --diloco.site 0 to %lld "
                "says which site it is; or start a multiple of %lld ranks (lateen launch --ranks "
                "%lld), which divide into all of them",
                (long long)r->sites, (long long)r->sites - 1, (long long)r->sites,
                (long long)r->sites);
    }
    r->site = w->first / lt_group_size(w->mesh.world);
    return LT_OK;
}

lt_err lt_diloco_place(lt_recipe *r, const lt_world *w) {
    char name[32], out[LT_OPTION_STR_BYTES];
    int n;
    if (r->sites == 1) {
        return LT_OK;
    }
    LT_TRY(find_site(r, w));
    (void)snprintf(name, sizeof name, "/site-%lld", (long long)r->site);
    (void)snprintf(out, sizeof out, "%s", r->out);
    if (lt_path_has_suffix(out, name)) { /* The recipe of a site's run folder. */
        out[strlen(out) - strlen(name)] = '\0';
    }
    n = snprintf(r->out, sizeof r->out, "%s%s", out, name);
    if (n < (int)sizeof r->out && r->meet[0] == '\0') {
        n = snprintf(r->meet, sizeof r->meet, "%s/rounds", out);
    }
    if (n >= (int)sizeof r->out) {
        LT_FAIL(LT_ERR_LIMIT, "path too long: %s", out);
    }
    if (strstr(r->meet, "://") != NULL) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "diloco.meet = %s: sites meet in a folder of a file system; mount it", r->meet);
    }
    return LT_OK;
}

/* ---- Which part of the model a round is about ---- */

/* Number of steps from one round to the next. */
static int64_t period(const lt_recipe *r) {
    return r->every / r->fragments;
}

/* Counted from 1; 0: the whole model. */
static int fragment_at(const lt_recipe *r, int64_t step) {
    return r->fragments == 1 || step >= r->steps ? 0
                                                 : (int)((step / period(r) - 1) % r->fragments) + 1;
}

/* Layers are distributed in turn: the first fragment has 1, 1 + fragments, ... The embeddings are
 * in the first fragment, and the head is in the last. */
static bool is_in(const lt_training *t, const lt_param *p, int fragment) {
    const lt_param_table *table = t->optimiser.share.table;
    const int n = (int)t->recipe.fragments, of = p->layer >= 0                   ? p->layer % n + 1
                                                 : p->unit == table->n_units - 1 ? n
                                                                                 : 1;
    return fragment == 0 || fragment == of;
}

static lt_sites_round round_of(const lt_training *t, int64_t step, int fragment) {
    const lt_param_table *table = t->optimiser.share.table;
    lt_sites_round round = {.step = step, .fragment = fragment};
    for (int i = 0; i < table->n_params; i++) {
        if (is_in(t, &table->params[i], fragment)) {
            round.payload_bytes += lt_outer_bytes((lt_outer_bits)t->recipe.outer_bits,
                                                  table->params[i].local_count);
        }
    }
    return round;
}

/* ---- Rounds under way ---- */

/* Most rounds in progress: each lasts overlap steps, and a round that ends makes room for one that
 * begins. */
static int most_under_way(const lt_recipe *r) {
    const int64_t n = (r->overlap + period(r) - 1) / period(r);
    return n > 1 ? (int)n : 1;
}

/* i: counted from the oldest. */
static lt_sites *under_way(const lt_diloco *d, int i) {
    return &d->flights[(d->oldest + i) % d->n_flights];
}

/* A free place for the next round, and the step of the previous one; 0: there is none. */
static lt_sites *next_place(lt_diloco *d, int64_t *after) {
    LT_ASSERT(d->n_under < d->n_flights);
    d->oldest = d->n_under > 0 ? d->oldest : 0;
    *after = d->n_under > 0 ? under_way(d, d->n_under - 1)->round.step : 0;
    return under_way(d, d->n_under);
}

/* Rounds up to a step are no longer in progress. */
static void forget_rounds(lt_diloco *d, int64_t step) {
    while (d->n_under > 0 && under_way(d, 0)->round.step <= step) {
        lt_sites_end(under_way(d, 0));
        d->oldest = (d->oldest + 1) % d->n_flights;
        d->n_under--;
    }
}

/* ---- What is held of a parameter, on the host ---- */

typedef struct {
    int64_t n;
    float *own, *outer, *momentum;
} held;

static lt_err bring(lt_training *t, const lt_param *p, held *h) {
    const lt_diloco *d = &t->diloco;
    const lt_backend *be = t->device->backend;
    const float *own = lt_param_data(t->optimiser.share.master, p),
                *outer = lt_param_data(d->state.outer, p),
                *momentum = lt_param_data(d->state.momentum, p);
    const size_t bytes = (size_t)p->local_count * sizeof(float);
    lt_queue *q = lt_training_queue(t);
    if (be->host_memory) {
        *h = (held){p->local_count, (float *)(uintptr_t)own, (float *)(uintptr_t)outer,
                    (float *)(uintptr_t)momentum};
        return LT_OK;
    }
    *h = (held){p->local_count, d->room + p->local_count, d->room + 2 * p->local_count,
                d->room + 3 * p->local_count};
    LT_TRY(be->download(q, h->own, own, bytes));
    LT_TRY(be->download(q, h->outer, outer, bytes));
    LT_TRY(be->download(q, h->momentum, momentum, bytes));
    return be->sync(q);
}

static lt_err take_back(lt_training *t, const lt_param *p, const held *h) {
    const lt_diloco *d = &t->diloco;
    const lt_backend *be = t->device->backend;
    const size_t bytes = (size_t)p->local_count * sizeof(float);
    lt_queue *q = lt_training_queue(t);
    if (be->host_memory) {
        return LT_OK;
    }
    LT_TRY(be->upload(q, lt_param_data(t->optimiser.share.master, p), h->own, bytes));
    LT_TRY(be->upload(q, lt_param_data(d->state.outer, p), h->outer, bytes));
    LT_TRY(be->upload(q, lt_param_data(d->state.momentum, p), h->momentum, bytes));
    return be->sync(q);
}

/* Call `act` for each parameter of the fragment of which this rank holds something, with its place
 * among all that is held. */
typedef lt_err (*act_fn)(lt_training *t, const held *h, int64_t at, void *ctx);

static lt_err each_param(lt_training *t, int fragment, act_fn act, void *ctx) {
    const lt_param_table *table = t->optimiser.share.table;
    int64_t at = 0;
    for (int i = 0; i < table->n_params; i++) {
        const lt_param *p = &table->params[i];
        held h;
        if (p->local_count > 0 && is_in(t, p, fragment)) {
            LT_TRY(bring(t, p, &h));
            LT_TRY(act(t, &h, at, ctx));
            LT_TRY(take_back(t, p, &h));
        }
        at += p->local_count;
    }
    return LT_OK;
}

/* The sum is computed where it is known; ranks that hold the same parameters receive it. */
static lt_err spread(const lt_diloco *d, int64_t n) {
    return d->same != NULL ? lt_broadcast(d->same, d->room, n, LT_F32, 0, NULL) : LT_OK;
}

/* ---- A round begins ---- */

typedef struct {
    char *out;
    XXH3_state_t *hash;
} sending;

static lt_err encode_param(lt_training *t, const held *h, int64_t at, void *ctx) {
    const lt_outer_bits bits = (lt_outer_bits)t->recipe.outer_bits;
    sending *s = ctx;
    (void)at;
    (void)XXH3_64bits_update(s->hash, h->outer, (size_t)h->n * sizeof(float));
    LT_TRY(lt_outer_encode(s->out, bits, h->outer, h->own, h->n));
    s->out += lt_outer_bytes(bits, h->n);
    return LT_OK;
}

static lt_err begin_round(lt_training *t, int64_t step) {
    lt_diloco *d = &t->diloco;
    lt_sites_round round = round_of(t, step, fragment_at(&t->recipe, step));
    lt_sites *sites = next_place(d, &round.after);
    sending s = {.hash = XXH3_createState()};
    lt_err err = s.hash != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "a hash");
    if (err == LT_OK) {
        (void)XXH3_64bits_reset(s.hash);
    }
    if (err == LT_OK && sites->o.part >= 0) {
        s.out = lt_sites_payload(sites);
        err = each_param(t, round.fragment, encode_param, &s);
    }
    err = err == LT_OK ? lt_sites_begin(sites, round, XXH3_64bits_digest(s.hash)) : err;
    XXH3_freeState(s.hash);
    d->n_under++;
    return err != LT_OK ? lt_error_prefix(err, "round of step %lld", (long long)step) : LT_OK;
}

/* ---- Its outer step ---- */

typedef struct {
    float share; /* Share of the rank's own parameters. */
    int n_members;
    const char *deltas[LT_SITES_MAX];
} ending;

static lt_err end_param(lt_training *t, const held *h, int64_t at, void *ctx) {
    const lt_recipe *r = &t->recipe;
    const lt_outer_bits bits = (lt_outer_bits)r->outer_bits;
    lt_diloco *d = &t->diloco;
    ending *e = ctx;
    (void)at;
    memset(d->room, 0, (size_t)h->n * sizeof *d->room);
    for (int site = 0; site < r->sites; site++) {
        if (e->deltas[site] != NULL) {
            lt_outer_add(d->room, bits, e->deltas[site], h->n);
            e->deltas[site] += lt_outer_bytes(bits, h->n);
        }
    }
    LT_TRY(spread(d, h->n));
    lt_outer_step(h->outer, h->momentum, d->room, e->n_members, (float)r->outer_lr,
                  (float)r->outer_momentum, h->n);
    lt_outer_merge(h->own, h->outer, e->share, h->n);
    return LT_OK;
}

/* Do the outer step of the round that was read. */
static lt_err outer_step(lt_training *t, const lt_sites *s, float share) {
    ending e = {.share = share, .n_members = lt_sites_members(s)};
    for (int site = 0; site < t->recipe.sites; site++) {
        e.deltas[site] = lt_sites_deltas(s, site);
    }
    LT_TRY(each_param(t, s->round.fragment, end_param, &e));
    t->state.outer_step = s->round.step;
    return LT_OK;
}

/* ---- Outer parameters for sites that come later ---- */

static lt_err copy_out(lt_training *t, const held *h, int64_t at, void *ctx) {
    float *both = ctx;
    const size_t bytes = (size_t)h->n * sizeof(float);
    memcpy(both + at, h->outer, bytes);
    memcpy(both + t->diloco.flights[0].o.n_elements + at, h->momentum, bytes);
    return LT_OK;
}

static lt_err copy_in(lt_training *t, const held *h, int64_t at, void *ctx) {
    const lt_diloco *d = &t->diloco;
    const float *both = ctx;
    const int64_t at_of[] = {at, d->flights[0].o.n_elements + at};
    float *const to[] = {h->outer, h->momentum};
    for (int i = 0; i < 2; i++) {
        if (both != NULL) {
            memcpy(d->room, both + at_of[i], (size_t)h->n * sizeof *d->room);
        }
        LT_TRY(spread(d, h->n));
        memcpy(to[i], d->room, (size_t)h->n * sizeof *d->room);
    }
    memcpy(h->own, h->outer, (size_t)h->n * sizeof *h->own);
    return LT_OK;
}

static lt_err start_outer(lt_training *t, const held *h, int64_t at, void *ctx) {
    (void)t;
    (void)at;
    (void)ctx;
    memcpy(h->outer, h->own, (size_t)h->n * sizeof *h->outer);
    return LT_OK;
}

/* Whether this site stores the outer parameters after the round, for all sites. */
static bool keeps(const lt_training *t, const lt_sites *s) {
    const lt_recipe *r = &t->recipe;
    int first = 0;
    while (first < r->sites && !s->member[first]) {
        first++;
    }
    return first == r->site && s->round.step % (r->every * r->keep_rounds) == 0;
}

static lt_err keep_outer(lt_training *t, const lt_sites *s) {
    const int64_t step = s->round.step, n = s->o.n_elements;
    float *both;
    lt_err err;
    if (!keeps(t, s)) {
        return LT_OK;
    }
    if (s->o.part >= 0) {
        both = malloc(2 * (size_t)n * sizeof *both);
        if (both == NULL) {
            LT_FAIL(LT_ERR_OOM, "outer parameters for sites that come later");
        }
        err = each_param(t, 0, copy_out, both);
        err = err == LT_OK ? lt_sites_keep_outer(s, step, both) : err;
        free(both);
        LT_TRY(err);
    }
    return s->o.leads ? lt_sites_forget(s, step - t->recipe.every * t->recipe.keep_rounds) : LT_OK;
}

/* ---- Rounds of others ---- */

/* What the leading rank found in the folder; the same on all ranks. */
typedef struct {
    int64_t newest; /* Step of the newest decided round; -1: none. */
    /* Step of the first round without this site, or of the first that the folder still has; -1: the
     * site can repeat all rounds as it did them. */
    int64_t without;
    int64_t from; /* Step of the outer parameters to start from; -1: this site's own. */
    int64_t n;    /* Number of rounds that follow them. */
} past;

static int64_t next_round(const lt_training *t) {
    const int64_t each = period(&t->recipe);
    return (t->state.outer_step / each + 1) * each;
}

static lt_err look_back(lt_training *t, past *out) {
    const lt_sites *s = &t->diloco.flights[0];
    int64_t *steps = NULL, fields[4] = {-1, -1, -1, 0};
    double told[4];
    size_t n = 0;
    lt_err err = LT_OK;
    if (lt_ranks_lead(&t->ranks)) {
        err = lt_sites_decided(s, t->state.outer_step, &steps, &n, &fields[1]);
        fields[0] = n > 0 ? steps[n - 1] : -1;
        if (n > 0 && steps[0] > next_round(t)) { /* Earlier rounds have been removed. */
            fields[1] = steps[0];
        }
        err = err == LT_OK ? lt_sites_newest_outer(s, t->state.outer_step, &fields[2]) : err;
        for (size_t i = 0; i < n; i++) {
            fields[3] += steps[i] > fields[2];
        }
        free(steps);
    }
    LT_TRY(lt_training_meet(t, err));
    for (int i = 0; i < 4; i++) {
        told[i] = (double)fields[i];
    }
    LT_TRY(lt_training_has_ranks(t) ? lt_broadcast(t->world->mesh.world, told, 4, LT_F64, 0, NULL)
                                    : LT_OK);
    *out = (past){(int64_t)told[0], (int64_t)told[1], (int64_t)told[2], (int64_t)told[3]};
    return LT_OK;
}

static lt_err take_outer(lt_training *t, const held *h, int64_t at, void *ctx) {
    (void)t;
    (void)at;
    (void)ctx;
    memcpy(h->own, h->outer, (size_t)h->n * sizeof *h->own);
    return LT_OK;
}

/* Read a decided round and do its outer step. */
static lt_err repeat_round(lt_training *t, lt_sites *s, int64_t step) {
    int fragment = 0;
    lt_err err = lt_sites_fragment(s, step, &fragment);
    err = err == LT_OK ? lt_sites_read(s, round_of(t, step, fragment)) : err;
    LT_TRY(lt_training_meet(t, err));
    return outer_step(t, s, 0.0f);
}

static lt_err begin_from(lt_training *t, int64_t step) {
    const lt_sites *s = &t->diloco.flights[0];
    lt_file_map map = {0};
    const float *both = NULL;
    lt_err err = s->o.part >= 0 ? lt_sites_map_outer(s, step, &map, &both) : LT_OK;
    err = lt_training_meet(t, err);
    err = err == LT_OK ? each_param(t, 0, copy_in, (void *)(uintptr_t)both) : err;
    lt_file_map_close(&map);
    t->state.outer_step = step;
    return err;
}

/* Move to the other sites' state: outer parameters and steps. Rounds in progress up to there belong
 * to the others; the remaining part of later ones counts. */
static lt_err catch_up(lt_training *t, const past *p) {
    lt_diloco *d = &t->diloco;
    int64_t *steps = NULL, without, after;
    lt_sites *s;
    size_t n = 0, done = 0;
    lt_err err = LT_OK;
    lt_log_warn("the other sites continued without this one at step %lld: it takes their outer "
                "parameters of step %lld, and continues there",
                (long long)p->without, (long long)p->newest);
    forget_rounds(d, p->newest);
    s = next_place(d, &after);
    LT_TRY(p->from >= 0 ? begin_from(t, p->from) : LT_OK);
    LT_TRY_DONE(lt_sites_decided(s, t->state.outer_step, &steps, &n, &without));
    for (size_t i = 0; i < n && steps[i] <= p->newest; i++, done++) {
        LT_TRY_DONE(repeat_round(t, s, steps[i]));
    }
    if ((int64_t)done != p->n) {
        LT_FAIL_DONE(LT_ERR_IO, "%s: %zu rounds up to step %lld, and the leading rank found %lld",
                     t->recipe.meet, done, (long long)p->newest, (long long)p->n);
    }
    LT_TRY_DONE(each_param(t, 0, take_outer, NULL));
done:
    lt_sites_end(s);
    free(steps);
    return lt_training_meet(t, err);
}

/* ---- A round ends ---- */

/* Wait until all ranks have read it, or a stop is requested; *r: the record of all ranks. */
static lt_err wait_for_round(lt_training *t, lt_sites *s, lt_step_record *r) {
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    lt_diloco *d = &t->diloco;
    const double since_s = lt_clock_s();
    for (;;) {
        bool done = false;
        const lt_err err = lt_sites_poll(s, &done);
        *r = (lt_step_record){.late = done ? 0.0 : 1.0, .stop = (double)lt_training_stop_asked(t)};
        if (done && s->o.part >= 0) {
            r->received_bytes = (double)lt_sites_received(s);
            r->sent_bytes = (double)s->round.payload_bytes;
        }
        LT_TRY(lt_ranks_combine(&t->ranks, r, err));
        if (r->late == 0.0 || r->stop != 0.0) {
            d->waited_s += lt_clock_s() - since_s;
            return LT_OK;
        }
        (void)nanosleep(&pause, NULL);
    }
}

static lt_err tell_round(lt_training *t, const lt_sites *s, int64_t step, const lt_step_record *r,
                         double waited_s) {
    json_t *sites = json_array();
    if (!lt_ranks_lead(&t->ranks)) {
        json_decref(sites);
        return LT_OK;
    }
    for (int site = 0; site < t->recipe.sites; site++) {
        if (s->member[site]) {
            json_array_append_new(sites, json_integer(site));
        }
    }
    return lt_metrics_put(
        &t->metrics, json_pack("{s:s, s:I, s:I, s:o, s:I, s:I, s:f}", "kind", "outer", "step",
                               (json_int_t)step, "round", (json_int_t)s->round.step, "sites", sites,
                               "sent_bytes", (json_int_t)r->sent_bytes, "received_bytes",
                               (json_int_t)r->received_bytes, "wait_s", waited_s));
}

/* End the oldest round. */
static lt_err end_round(lt_training *t, int64_t step, bool *changed, int *stop) {
    lt_diloco *d = &t->diloco;
    lt_sites *s = under_way(d, 0);
    const double waited_before_s = d->waited_s;
    const float share = s->round.step < step ? (float)t->recipe.merge : 0.0f;
    lt_step_record r;
    past p;
    LT_TRY(wait_for_round(t, s, &r));
    if (r.late != 0.0) {
        *stop = (int)r.stop;
        return LT_OK;
    }
    *changed = true;
    LT_TRY(look_back(t, &p));
    if (p.without >= 0) {
        return catch_up(t, &p);
    }
    LT_TRY(outer_step(t, s, share));
    LT_TRY(keep_outer(t, s));
    LT_TRY(tell_round(t, s, step, &r, d->waited_s - waited_before_s));
    d->n_rounds++;
    d->sent_bytes += r.sent_bytes;
    d->received_bytes += r.received_bytes;
    forget_rounds(d, s->round.step);
    return LT_OK;
}

/* ---- The run ---- */

static bool begins(const lt_training *t, int64_t step) {
    return step > t->state.outer_step &&
           (step % period(&t->recipe) == 0 || step >= t->recipe.steps);
}

static bool ends(const lt_training *t, int64_t step) {
    const lt_diloco *d = &t->diloco;
    return d->n_under > 0 &&
           (step >= under_way(d, 0)->round.step + t->recipe.overlap || step >= t->recipe.steps);
}

bool lt_diloco_is_due(const lt_training *t, int64_t step) {
    return t->diloco.on && (ends(t, step) || (begins(t, step) && t->recipe.overlap == 0) ||
                            step >= t->recipe.steps);
}

bool lt_diloco_waits(const lt_training *t) {
    return t->diloco.on && t->diloco.n_under > 0 && t->state.step >= t->recipe.steps;
}

lt_err lt_diloco_settle(lt_training *t) {
    const lt_diloco *d = &t->diloco;
    for (int i = 0; i < d->n_under; i++) {
        LT_TRY(lt_sites_wait_posted(under_way(d, i)));
    }
    return LT_OK;
}

lt_err lt_diloco_follow(lt_training *t, int64_t step, bool *changed, int *stop) {
    lt_diloco *d = &t->diloco;
    const double waited_s = t->times.line.waited_s; /* A round is not part of a step's transfers. */
    *changed = false;
    *stop = 0;
    if (!d->on || !(ends(t, step) || begins(t, step))) {
        return LT_OK;
    }
    LT_TRY(t->device->backend->sync(lt_training_queue(t)));
    while (ends(t, step) && *stop == 0) {
        LT_TRY(end_round(t, step, changed, stop));
    }
    if (*stop == 0 && begins(t, step)) {
        LT_TRY(begin_round(t, step));
        LT_TRY(ends(t, step) ? end_round(t, step, changed, stop) : LT_OK);
    }
    if (*changed) {
        LT_TRY(lt_model_sync_weights(t->trained));
        t->trained->version++;
    }
    t->times.line.waited_s = waited_s;
    return LT_OK;
}

/* Find a round that was in progress when the state was saved: its file must exist. */
static lt_err find_round(lt_training *t, int64_t began) {
    lt_diloco *d = &t->diloco;
    const int64_t step = t->state.step;
    lt_sites_round round = round_of(t, began, fragment_at(&t->recipe, began));
    lt_sites *s = next_place(d, &round.after);
    if (!lt_sites_has_posted(s, began)) {
        LT_FAIL(LT_ERR_STATE,
                "%s: what this site left there at step %lld is gone, and the checkpoint of step "
                "%lld needs it; resume from a checkpoint before step %lld",
                t->recipe.meet, (long long)began, (long long)step, (long long)began);
    }
    d->n_under++;
    return lt_sites_begin(s, round, 0);
}

/* Find all of them. The deltas of a round that begins at the saved step are those of this state. */
static lt_err find_rounds(lt_training *t) {
    for (int64_t began = next_round(t); began < t->state.step; began += period(&t->recipe)) {
        LT_TRY(find_round(t, began));
    }
    return LT_OK;
}

lt_err lt_diloco_join(lt_training *t) {
    lt_diloco *d = &t->diloco;
    bool changed = false;
    int stop = 0;
    past p;
    if (!d->on) {
        return LT_OK;
    }
    LT_TRY(t->resume_path[0] == '\0' ? each_param(t, 0, start_outer, NULL) : LT_OK);
    LT_TRY(look_back(t, &p));
    const bool late = p.without >= 0;
    LT_TRY(late ? catch_up(t, &p) : LT_OK);
    LT_TRY(lt_training_meet(t, find_rounds(t)));
    LT_TRY(t->state.step > 0 ? lt_diloco_follow(t, t->state.step, &changed, &stop) : LT_OK);
    if (late && !changed) {
        LT_TRY(lt_model_sync_weights(t->trained));
        t->trained->version++;
    }
    changed = changed || late;
    LT_TRY(lt_training_skip(t, t->state.outer_step));
    t->saved_step = changed ? -1 : t->saved_step; /* The saved state of this step is older. */
    return changed ? lt_training_gather(t) : LT_OK;
}

/* ---- Open and close ---- */

/* Everything that defines model and training must be the same at all sites; the data are their
 * own. */
static json_t *facts_of(const lt_training *t, int n_parts) {
    static const char *const own[] = {"data.", "model.init", "model.config", "lora.init"};
    json_t *facts = json_object();
    char text[LT_OPTION_STR_BYTES];
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        bool may_differ = (row->flags & (LT_RECIPE_MAY_CHANGE | LT_RECIPE_ONCE)) != 0;
        for (size_t k = 0; k < sizeof own / sizeof *own; k++) {
            may_differ = may_differ || strncmp(row->name, own[k], strlen(own[k])) == 0;
        }
        if (!may_differ) {
            lt_option_text(row, &t->recipe, text, sizeof text);
            json_object_set_new(facts, row->name, json_string(text));
        }
    }
    (void)snprintf(text, sizeof text, "%d", n_parts);
    json_object_set_new(facts, "parts of the model in a site's mesh", json_string(text));
    return facts;
}

/* Which ranks hold the same parameters as this one, and which part of the model these are. */
static void find_part(lt_training *t, int *part, int *n_parts) {
    lt_group *same = NULL;
    *part = 0;
    *n_parts = 1;
    if (lt_training_has_ranks(t)) {
        *part = lt_shards_part(&t->shards, n_parts);
        same = t->shards.level == 0      ? t->world->mesh.edp
               : t->world->shape.ep == 1 ? t->shards.replicas
                                         : NULL;
    }
    t->diloco.same = same != NULL && lt_group_size(same) > 1 ? same : NULL;
}

/* Open places for rounds, each with room for what it sends. */
static lt_err open_flights(lt_training *t, lt_sites_options *o, const json_t *facts) {
    const int most = most_under_way(&t->recipe);
    lt_diloco *d = &t->diloco;
    size_t largest = 0;
    for (int fragment = 1; fragment <= t->recipe.fragments; fragment++) {
        const size_t bytes = round_of(t, 0, fragment).payload_bytes;
        largest = bytes > largest ? bytes : largest;
    }
    d->flights = calloc((size_t)most, sizeof *d->flights);
    if (d->flights == NULL) {
        LT_FAIL(LT_ERR_OOM, "%d rounds under way", most);
    }
    for (; d->n_flights < most; d->n_flights++) {
        o->payload_bytes = d->n_flights == 0 ? round_of(t, 0, 0).payload_bytes : largest;
        LT_TRY(lt_sites_open(&d->flights[d->n_flights], o, facts));
        d->bytes += o->part >= 0 ? o->payload_bytes : 0;
    }
    return LT_OK;
}

lt_err lt_diloco_open(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_param_table *table = t->optimiser.share.table;
    lt_diloco *d = &t->diloco;
    int64_t most = 0;
    lt_sites_options o = {.folder = r->meet,
                          .n_sites = (int)r->sites,
                          .site = (int)r->site,
                          .leads = lt_ranks_lead(&t->ranks),
                          .deadline_s = r->site_deadline,
                          .bits = (lt_outer_bits)r->outer_bits};
    json_t *facts;
    lt_err err;
    if (r->sites == 1) {
        return LT_OK;
    }
    LT_ASSERT(r->site >= 0); /* Checked by lt_diloco_place. */
    if (r->fragments > t->spec.n_layers) {
        LT_FAIL(LT_ERR_ARG,
                "diloco.fragments = %lld: the model has %lld layers, and a fragment at "
                "least one",
                (long long)r->fragments, (long long)t->spec.n_layers);
    }
    if (t->snapshots.wanted && lt_comm_size(t->world->comm) > lt_group_size(t->world->mesh.world)) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "launch --nodes keeps snapshots of one site: start each site by a launch of its "
                "own, with --diloco.site");
    }
    find_part(t, &o.part, &o.n_parts);
    for (int i = 0; i < table->n_params; i++) {
        const int64_t n = table->params[i].local_count;
        most = n > most ? n : most;
        o.n_elements += n;
    }
    facts = facts_of(t, o.n_parts);
    err = open_flights(t, &o, facts);
    json_decref(facts);
    LT_TRY(err);
    const size_t room = (t->device->backend->host_memory ? 1 : HOST_ROOM) * (size_t)most;
    d->room = malloc(room * sizeof *d->room);
    if (d->room == NULL) {
        LT_FAIL(LT_ERR_OOM, "room for outer steps");
    }
    d->bytes += room * sizeof *d->room;
    d->state = lt_optimiser_outer(&t->optimiser);
    d->on = true;
    return LT_OK;
}

void lt_diloco_close(lt_training *t) {
    for (int i = 0; i < t->diloco.n_flights; i++) {
        lt_sites_close(&t->diloco.flights[i]);
    }
    free(t->diloco.flights);
    free(t->diloco.room);
    t->diloco = (lt_diloco){0};
}

/* The bytes that an all-reduce of F32 gradients over the sites would send in every step. */
static double gradient_bytes(const lt_training *t) {
    const double sites = (double)t->recipe.sites, n = (double)t->trained->table.whole_elements,
                 steps = (double)(t->state.step - t->first_step + 1);
    return 2.0 * (1.0 - 1.0 / sites) * n * 4.0 * steps;
}

void lt_diloco_tell_end(const lt_training *t) {
    const lt_diloco *d = &t->diloco;
    if (!d->on || d->n_rounds == 0) {
        return;
    }
    const double received = d->received_bytes;
    lt_log_info("between sites: %lld rounds, %.2f MiB left and %.2f MiB read by this site, which "
                "waited %.1f s for the others",
                (long long)d->n_rounds, d->sent_bytes / MIB, received / MIB, d->waited_s);
    if (received > 0.0) {
        lt_log_info("  sums of gradients in each step would have been %.1f MiB a site: %.0f times "
                    "as much",
                    gradient_bytes(t) / MIB, gradient_bytes(t) / received);
    }
}
