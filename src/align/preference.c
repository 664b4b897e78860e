/* preference.c: see preference.h. */
#include "align/preference.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/rng.h"

/* ---- Statistics ---- */

enum { CHOSEN, REJECTED, SIDES };
/* Sums of a record. */
enum { REWARD, LOGP = REWARD + SIDES, COUNT = LOGP + SIDES, RIGHT = COUNT + SIDES, POINT };

bool lt_preference_is_kto(const lt_preference_objective *p) {
    return strcmp(p->row->name, "kto") == 0;
}

static void report(const void *of, const lt_step_record *sum, double *values, bool *present) {
    const lt_preference_objective *p = of;
    const double *s = sum->objective;
    for (int side = 0; side < SIDES; side++) {
        const double n = s[COUNT + side];
        present[LT_PREFERENCE_chosen + side] = n > 0.0;
        present[LT_PREFERENCE_logps_chosen + side] = n > 0.0 && p->row->given != LT_ALIGN_SCORES &&
                                                     p->row->given != LT_ALIGN_STEPS;
        values[LT_PREFERENCE_chosen + side] = n > 0.0 ? s[REWARD + side] / n : 0.0;
        values[LT_PREFERENCE_logps_chosen + side] = n > 0.0 ? s[LOGP + side] / n : 0.0;
    }
    present[LT_PREFERENCE_margins] = present[LT_PREFERENCE_chosen] &&
                                     present[LT_PREFERENCE_rejected];
    values[LT_PREFERENCE_margins] = values[LT_PREFERENCE_chosen] - values[LT_PREFERENCE_rejected];
    const double judged = p->row->given == LT_ALIGN_SINGLE ? 0.0
                          : p->row->given == LT_ALIGN_STEPS
                              ? s[COUNT + CHOSEN] + s[COUNT + REJECTED]
                              : s[COUNT + CHOSEN];
    present[LT_PREFERENCE_accuracies] = judged > 0.0;
    values[LT_PREFERENCE_accuracies] = judged > 0.0 ? s[RIGHT] / judged : 0.0;
    present[LT_PREFERENCE_kl] = lt_preference_is_kto(p);
    values[LT_PREFERENCE_kl] = s[POINT] / (s[COUNT + CHOSEN] + s[COUNT + REJECTED]);
}

/* ---- Rows ---- */

/* The example whose completion follows the prompt of example i in a mismatched row: the one before
 * it in its block; for the first example of a block, the last of that block; for a block of one
 * example, the one before it in the file. */
static int64_t partner_of(const lt_preference_objective *p, const lt_preference_set *set,
                          int64_t i) {
    const int64_t n = set->rows.n, first = i / p->block * p->block;
    const int64_t last = first + p->block < n ? first + p->block - 1 : n - 1;
    return i > first ? i - 1 : last > first ? last : (i + n - 1) % n;
}

/* Ids of a row: two pieces, the second of which begins at `first` of the row. */
typedef struct {
    const int32_t *head, *tail;
    int64_t first, n; /* n counts the ids of the whole row. */
} pieces;

static pieces pieces_of(const lt_preference_objective *p, const lt_preference_set *set,
                        int64_t row) {
    const lt_preferences *r = &set->rows;
    const int64_t n_rows = r->n * r->together, own = row < n_rows ? row : row - n_rows,
                  other = row < n_rows ? row : partner_of(p, set, own), first = r->first[own];
    return (pieces){.head = r->ids + r->start[own],
                    .tail = r->ids + r->start[other] + r->first[other],
                    .first = first,
                    .n = first + lt_preferences_tokens(r, other) - r->first[other]};
}

void lt_preference_row(const lt_preference_objective *p, const lt_preference_set *set,
                       const lt_model_spec *spec, int64_t row, int64_t seq, int32_t *tokens,
                       int32_t *labels) {
    const pieces x = pieces_of(p, set, row);
    const int64_t n = x.n < seq ? x.n : seq;
    for (int64_t i = 0; i < seq; i++) {
        tokens[i] = i >= n ? 0 : i < x.first ? x.head[i] : x.tail[i - x.first];
        labels[i] = -1;
    }
    if (p->row->given == LT_ALIGN_SCORES) {
        labels[lt_model_score_at(spec, tokens, n)] = 0;
        return;
    }
    if (p->row->given == LT_ALIGN_STEPS) {
        for (int64_t i = x.first; i < n; i++) {
            labels[i] = set->rows.steps[set->rows.start[row] + i];
        }
        return;
    }
    for (int64_t i = x.first > 1 ? x.first : 1; i < n; i++) {
        labels[i - 1] = tokens[i];
    }
}

lt_err lt_preference_values(const lt_preference_objective *p, const lt_preference_set *set,
                            lt_training *t, const lt_row_batch *rows, int64_t n,
                            const float **values, int64_t *used) {
    const int64_t seq = rows->ids.seq;
    for (int64_t i = 0; i < n; i++) {
        lt_preference_row(p, set, &t->model->spec, rows->index[i], seq, rows->ids.tokens + i * seq,
                          rows->ids.labels + i * seq);
    }
    return lt_objective_values(t, rows, 0, n, values, used);
}

double lt_preference_sum(const float *values, int64_t n) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += (double)values[i];
    }
    return sum;
}

/* Where a row's values begin, and their number. */
static int64_t values_of(const lt_objective_part *part, int64_t i, int64_t *n) {
    const int32_t *labels = part->labels + i * part->seq;
    int64_t first = 0;
    while (first < part->seq && labels[first] < 0) {
        first++;
    }
    for (*n = 0; first + *n < part->seq && labels[first + *n] >= 0;) {
        ++*n;
    }
    return first;
}

/* ---- Drawing ---- */

typedef struct {
    lt_preference_objective *p;
    lt_preference_set *set;
    const lt_model_spec *spec;
} drawing;

static int64_t example_of(const lt_preference_set *set, int64_t drawn) {
    const uint64_t n = (uint64_t)set->rows.n, i = (uint64_t)(drawn * set->stride + set->offset);
    return (int64_t)(set->shuffle ? lt_rng_permute(i % n, n, set->seed, i / n) : i % n);
}

static void draw(const lt_preference_objective *p, lt_preference_set *set,
                 const lt_model_spec *spec, int64_t n, lt_row_batch *out) {
    const int64_t together = set->rows.together, seq = out->ids.seq;
    for (int64_t i = 0; i < n; i++) {
        const int64_t row = example_of(set, set->at + i / together) * together + i % together;
        lt_preference_row(p, set, spec, row, seq, out->ids.tokens + i * seq,
                          out->ids.labels + i * seq);
        out->index[i] = row;
    }
    set->at += n / together;
}

static lt_err next(void *of, int64_t n, lt_row_batch *out) {
    lt_training *t = of;
    lt_preference_objective *p = t->objective->of;
    draw(p, &p->train, &t->model->spec, n, out);
    return LT_OK;
}

/* The place counts the examples of all ranks, so a run with another number of ranks can resume
 * there. */
static void place(const void *of, lt_row_place *out) {
    const lt_training *t = of;
    const lt_preference_objective *p = t->objective->of;
    out->row = p->train.at * p->train.stride;
}

static json_t *print_place(const void *of, const lt_row_place *at) {
    (void)of;
    return json_pack("{s:I}", "examples", (json_int_t)at->row);
}

static lt_err seek(void *of, const json_t *at) {
    lt_training *t = of;
    lt_preference_objective *p = t->objective->of;
    int64_t examples = 0;
    LT_TRY(lt_json_i64(at, "examples", &examples, false, "place in the preferences"));
    if (examples < 0 || examples % p->train.stride != 0) {
        LT_FAIL(LT_ERR_STATE, "%lld examples were drawn, which %lld ranks cannot have divided",
                (long long)examples, (long long)p->train.stride);
    }
    p->train.at = examples / p->train.stride;
    return LT_OK;
}

static lt_err next_held_out(void *of, int64_t n, lt_row_batch *out) {
    lt_training *t = of;
    lt_preference_objective *p = t->objective->of;
    draw(p, &p->valid, &t->model->spec, n, out);
    return LT_OK;
}

static lt_err seek_held_out(void *of, const json_t *at) {
    lt_training *t = of;
    LT_ASSERT(at == NULL);
    ((lt_preference_objective *)t->objective->of)->valid.at = 0;
    return LT_OK;
}

/* ---- The loss ---- */

/* Log-probabilities are at most 0; rounding may exceed that slightly. */
static void side_of(lt_align_side *side, const lt_preference_objective *p,
                    const lt_preference_set *set, const lt_objective_part *part, int64_t i,
                    float *logp, double *dlogp) {
    int64_t n;
    const int64_t first = values_of(part, i, &n);
    for (int64_t k = 0; k < n; k++) {
        const float v = part->values[i * part->seq + first + k];
        logp[k] = v > 0.0f ? 0.0f : v;
    }
    *side = (lt_align_side){.logp = logp,
                            .ref_sum = p->row->reference ? &set->reference[part->index[i]] : NULL,
                            .dlogp = dlogp,
                            .n = n};
}

static void put_derivatives(const lt_objective_part *part, int64_t i, const double *d) {
    int64_t n;
    const int64_t first = values_of(part, i, &n);
    for (int64_t k = 0; part->dvalues != NULL && k < n; k++) {
        part->dvalues[i * part->seq + first + k] = (float)d[k];
    }
}

static void count(const lt_preference_objective *p, lt_step_record *sum, int side,
                  const lt_align_side *s, double *reward) {
    double logp = lt_preference_sum(s->logp, s->n);
    *reward = p->options.beta * (logp - (s->ref_sum != NULL ? *s->ref_sum : 0.0));
    if (!p->row->reference) { /* ORPO and SimPO use the mean. */
        logp /= (double)s->n;
        *reward = p->options.beta * logp;
    }
    sum->objective[REWARD + side] += *reward;
    sum->objective[LOGP + side] += logp;
    sum->objective[COUNT + side] += 1.0;
}

static lt_err pair_loss(lt_preference_objective *p, const lt_preference_set *set,
                        const lt_objective_part *part, int64_t i, double *loss,
                        lt_step_record *sum) {
    double *const d[SIDES] = {p->dlogp, p->dlogp + p->seq}, reward[SIDES];
    lt_align_side side[SIDES];
    for (int s = 0; s < SIDES; s++) {
        side_of(&side[s], p, set, part, i + s, p->logp + s * p->seq, d[s]);
        count(p, sum, s, &side[s], &reward[s]);
    }
    sum->objective[RIGHT] += reward[CHOSEN] > reward[REJECTED] ? 1.0 : 0.0;
    LT_TRY(lt_align_pair(p->row, &p->options, &side[CHOSEN], &side[REJECTED], loss));
    for (int s = 0; s < SIDES; s++) {
        put_derivatives(part, i + s, d[s]);
    }
    return LT_OK;
}

static lt_err score_loss(lt_preference_objective *p, const lt_preference_set *set,
                         const lt_objective_part *part, int64_t i, double *loss,
                         lt_step_record *sum) {
    lt_align_options o = p->options;
    lt_align_value v;
    double score[SIDES];
    int64_t n;
    for (int s = 0; s < SIDES; s++) {
        score[s] = (double)part->values[(i + s) * part->seq + values_of(part, i + s, &n)];
        sum->objective[REWARD + s] += score[s];
        sum->objective[COUNT + s] += 1.0;
    }
    sum->objective[RIGHT] += score[CHOSEN] > score[REJECTED] ? 1.0 : 0.0;
    o.margin = set->rows.examples[part->index[i] / SIDES].margin;
    LT_TRY(lt_align_scores(p->row, &o, score[CHOSEN], score[REJECTED], &v));
    put_derivatives(part, i + CHOSEN, &v.dchosen);
    put_derivatives(part, i + REJECTED, &v.drejected);
    *loss = v.loss;
    return LT_OK;
}

static lt_err single_loss(lt_preference_objective *p, const lt_preference_set *set,
                          const lt_objective_part *part, int64_t i, double *loss,
                          lt_step_record *sum) {
    const lt_preference *e = &set->rows.examples[part->index[i]];
    lt_align_sample sample = {
        .good = e->good, .point = set->point, .quantile = e->quantile, .n_refs = e->n_refs};
    /* If the objective learns from quantiles, examples in the upper half count as chosen. */
    const bool chosen = p->row->weights ? e->good : e->quantile > 0.5;
    double reward;
    side_of(&sample.side, p, set, part, i, p->logp, p->dlogp);
    count(p, sum, chosen ? CHOSEN : REJECTED, &sample.side, &reward);
    sum->objective[POINT] += set->point;
    LT_TRY(lt_align_single(p->row, &p->options, &sample, loss));
    put_derivatives(part, i, p->dlogp);
    return LT_OK;
}

/* The reward of a step is the probability that it is good. */
static void count_step(lt_step_record *sum, bool good, double right) {
    const int side = good ? CHOSEN : REJECTED;
    sum->objective[REWARD + side] += good ? right : 1.0 - right;
    sum->objective[COUNT + side] += 1.0;
    sum->objective[RIGHT] += right > 0.5 ? 1.0 : 0.0;
}

static lt_err step_loss(lt_preference_objective *p, const lt_objective_part *part, int64_t i,
                        double *loss, double *n_steps, lt_step_record *sum) {
    const int32_t *labels = part->labels + i * part->seq;
    const float *values = part->values + i * part->seq;
    int64_t n = 0;
    for (int64_t k = 0; k < part->seq; k++) {
        if (labels[k] >= 0) {
            p->logp[n++] = values[k] > 0.0f ? 0.0f : values[k];
            count_step(sum, labels[k] == 1, exp((double)values[k]));
        }
    }
    LT_TRY(lt_align_steps(p->row, &p->options, p->logp, n, loss, p->dlogp));
    *n_steps = (double)n;
    n = 0;
    for (int64_t k = 0; part->dvalues != NULL && k < part->seq; k++) {
        if (labels[k] >= 0) {
            part->dvalues[i * part->seq + k] = (float)p->dlogp[n++];
        }
    }
    return LT_OK;
}

static lt_err loss_of(void *of, const lt_objective_part *part, bool held_out, lt_step_record *sum) {
    lt_preference_objective *p = of;
    const lt_preference_set *set = held_out ? &p->valid : &p->train;
    for (int64_t i = 0; i < part->n; i += set->rows.together) {
        double loss = 0.0, weight = 1.0;
        lt_err err = p->row->given == LT_ALIGN_STEPS    ? step_loss(p, part, i, &loss, &weight, sum)
                     : p->row->given == LT_ALIGN_PAIR   ? pair_loss(p, set, part, i, &loss, sum)
                     : p->row->given == LT_ALIGN_SCORES ? score_loss(p, set, part, i, &loss, sum)
                                                        : single_loss(p, set, part, i, &loss, sum);
        if (err == LT_ERR_NUMERIC) { /* The guard skips the update, as for any such loss. */
            lt_log_warn("%s", lt_error_message());
            loss = NAN;
            err = LT_OK;
        }
        LT_TRY(err);
        sum->loss_sum += loss;
        sum->weight_sum += weight;
    }
    return LT_OK;
}

/* ---- KTO's reference point ---- */

typedef struct {
    lt_preference_objective *p;
    const lt_preference_set *set;
    lt_training *t;
    const lt_row_batch *rows;
    int64_t n;
    double sum; /* Sum of log-ratios. */
} mismatch;

/* Add the log-ratios of mismatched rows to those of a pass. */
static lt_err add_mismatched(void *of, int64_t pass) {
    mismatch *m = of;
    const lt_row_batch *mismatched = &m->p->mismatched.batch;
    const int64_t first = pass * m->t->micro, left = m->n - first;
    const int64_t n = pass < 0 ? 0 : left < m->t->micro ? left : m->t->micro;
    const float *values;
    int64_t used;
    for (int64_t i = 0; i < n; i++) {
        mismatched->index[i] = m->set->rows.n + m->rows->index[first + i];
    }
    LT_TRY(lt_preference_values(m->p, m->set, m->t, mismatched, n, &values, &used));
    for (int64_t i = 0; i < n; i++) {
        m->sum += lt_preference_sum(values + i * used, used) -
                  m->set->reference[mismatched->index[i]];
    }
    return LT_OK;
}

static lt_err begin(void *of, lt_training *t, const lt_row_batch *rows, int64_t n, bool held_out) {
    lt_preference_objective *p = of;
    lt_preference_set *set = held_out ? &p->valid : &p->train;
    mismatch m = {.p = p, .set = set, .t = t, .rows = rows, .n = n};
    double sums[2];
    LT_TRY(lt_objective_passes(t, (n + t->micro - 1) / t->micro, add_mismatched, &m));
    sums[0] = m.sum;
    sums[1] = (double)n;
    LT_TRY(lt_objective_sum(t, sums, 2));
    set->point = sums[1] > 0.0 ? fmax(0.0, sums[0] / sums[1]) : 0.0;
    return LT_OK;
}

/* ---- Opening ---- */

static void tell(const char *option, const char *text, const lt_preferences *r) {
    lt_log_info("%s %s: %lld examples, %lld tokens", option, text, (long long)r->n,
                (long long)r->start[r->n * r->together]);
    if (r->left_out > 0 || r->cut > 0) {
        lt_log_warn("%s %s: %llu examples left out, %llu cut", option, text,
                    (unsigned long long)r->left_out, (unsigned long long)r->cut);
    }
}

static lt_err read_set(lt_preference_objective *p, lt_preference_set *set, lt_training *t,
                       lt_mixture *m, const char *text, const char *option) {
    const char *paths[LT_LOADER_SOURCES_MAX];
    const lt_recipe *r = &t->recipe;
    lt_err err;
    LT_TRY(lt_mixture_parse(m, text, option));
    for (int64_t i = 0; i < m->n_sources; i++) {
        paths[i] = m->sources[i].path;
        if (m->sources[i].weight != 1.0) {
            LT_FAIL(LT_ERR_UNSUPPORTED,
                    "%s: %s has weight %g: files of preferences are read as a whole, one after the "
                    "other; weights are not supported",
                    option, paths[i], m->sources[i].weight);
        }
    }
    err = lt_preferences_read(
        &set->rows,
        &(lt_preferences_options){.paths = paths,
                                  .n_paths = m->n_sources,
                                  .rows = &t->chat.rows,
                                  .given = p->row->given,
                                  .quantiles = p->row->given == LT_ALIGN_SINGLE && !p->row->weights,
                                  .steps = &p->steps,
                                  .longest = r->seq,
                                  .bad_rows = (lt_bad_rows)r->bad_rows,
                                  .too_long = (lt_too_long)r->too_long});
    if (err != LT_OK) {
        return lt_error_prefix(err, "%s", option);
    }
    if (lt_preference_is_kto(p) && set->rows.n < 2) {
        LT_FAIL(LT_ERR_FORMAT,
                "%s: %lld example: kto compares each completion with another's prompt", option,
                (long long)set->rows.n);
    }
    set->stride = lt_training_dp(t);
    set->offset = lt_training_dp_rank(t);
    tell(option, text, &set->rows);
    return LT_OK;
}

/* A row with a score ends at the token at which transformers reads the score: the last that is not
 * padding. */
static void name_padding(lt_training *t) {
    const uint32_t pad = t->tokenizer_info.pad;
    if (t->model->spec.n_scores > 0 && t->model->spec.pad_id < 0 && pad != LT_TOKEN_NONE) {
        t->model->spec.pad_id = t->trained->spec.pad_id = (int64_t)pad;
    }
}

/* The separator of steps: the recipe's, otherwise that of model.init. It is written to the model's
 * configuration. */
static lt_err open_steps(lt_preference_objective *p, lt_training *t) {
    char text[LT_SEPARATOR_BYTES] = "\n";
    lt_tokenizer_scratch *scratch = NULL;
    lt_err err = LT_OK;
    if (p->row->given != LT_ALIGN_STEPS) {
        return LT_OK;
    }
    const char *own = t->recipe.align_separator;
    const size_t bytes = strlen(own);
    if (bytes >= LT_SEPARATOR_BYTES) {
        LT_FAIL(LT_ERR_ARG, "objective.separator has %zu bytes; at most %d are possible", bytes,
                LT_SEPARATOR_BYTES - 1);
    }
    if (bytes > 0) {
        memcpy(text, own, bytes + 1);
    } else if (t->model->spec.step_separator[0] != '\0') {
        memcpy(text, t->model->spec.step_separator, sizeof text);
    }
    memcpy(t->model->spec.step_separator, text, sizeof text);
    memcpy(t->trained->spec.step_separator, text, sizeof text);
    LT_TRY_DONE(lt_tokenizer_scratch_open(&scratch, t->tokenizer));
    LT_TRY_DONE(lt_steps_open(&p->steps, t->tokenizer, scratch, t->model->spec.step_separator));
done:
    lt_tokenizer_scratch_close(scratch);
    return err == LT_OK ? LT_OK : lt_error_prefix(err, "objective.separator");
}

static lt_err open_sets(void *of, lt_training *t) {
    lt_preference_objective *p = of;
    const lt_recipe *r = &t->recipe;
    if (!lt_recipe_has_chats(r)) {
        LT_FAIL(LT_ERR_ARG,
                "data.train = %s: objective.kind = %s learns from JSON lines, in a file named "
                ".jsonl, .ndjson or .json",
                r->train, p->row->name);
    }
    if (p->row->weights && p->options.good <= 0.0 && p->options.bad <= 0.0) {
        LT_FAIL(LT_ERR_ARG, "objective.good and objective.bad are both 0: nothing would be learnt");
    }
    name_padding(t);
    LT_TRY(open_steps(p, t));
    LT_TRY(read_set(p, &p->train, t, &t->train_mixture, r->train, "data.train"));
    p->train.shuffle = r->shuffle != LT_SHUFFLE_NONE;
    p->train.seed = (uint64_t)r->seed;
    t->source = (lt_row_source){
        .of = t, .next = next, .place = place, .print = print_place, .seek = seek};
    if (r->valid[0] != '\0') {
        LT_TRY(read_set(p, &p->valid, t, &t->valid_mixture, r->valid, "data.valid"));
        t->held_out = (lt_row_source){.of = t, .next = next_held_out, .seek = seek_held_out};
        t->n_held_out = p->valid.rows.n;
    }
    p->seq = r->seq;
    p->logp = malloc((size_t)(SIDES * p->seq) * sizeof *p->logp);
    p->dlogp = malloc((size_t)(SIDES * p->seq) * sizeof *p->dlogp);
    if (p->logp == NULL || p->dlogp == NULL) {
        LT_FAIL(LT_ERR_OOM, "log-probabilities of a pair");
    }
    LT_TRY(lt_preference_is_kto(p) ? lt_step_rows_open(&p->mismatched, t->micro, p->seq, false)
                                   : LT_OK);
    t->objective_bytes = p->train.rows.bytes + p->valid.rows.bytes;
    return LT_OK;
}

static lt_err compare_hash(const json_t *then, const char *option, const char *hex) {
    const char *was = json_string_value(then);
    if (was != NULL && strcmp(was, hex) != 0) {
        LT_FAIL(LT_ERR_STATE,
                "%s: the examples have changed since the checkpoint: their checksum was %s, now %s",
                option, was, hex);
    }
    return LT_OK;
}

/* name: of the set in t->data, as in resume.c; reference: of its sums. */
static lt_err note_data(const lt_preference_set *set, lt_training *t, const json_t *then,
                        const char *option, const char *name) {
    char hex[17];
    if (set->rows.n == 0) {
        return LT_OK;
    }
    (void)snprintf(hex, sizeof hex, "%016llx", (unsigned long long)set->rows.hash);
    (void)json_object_set_new(t->data, name, json_string(hex));
    return lt_training_has_changed(t, option)
               ? LT_OK
               : lt_training_allow_or(t, option,
                                      compare_hash(json_object_get(then, name), option, hex));
}

/* The checkpoint's checksum of a reference, or "" if the rows have changed. */
static void note_reference(char was[17], const lt_training *t, const json_t *then,
                           const char *option, const char *name) {
    const char *hex = json_string_value(json_object_get(then, name));
    (void)snprintf(was, 17, "%s", hex != NULL && !lt_training_has_changed(t, option) ? hex : "");
}

static lt_err data(void *of, lt_training *t, const json_t *then) {
    lt_preference_objective *p = of;
    note_reference(p->was[0], t, then, "data.train", "reference");
    note_reference(p->was[1], t, then, "data.valid", "reference_valid");
    LT_TRY(note_data(&p->train, t, then, "data.train", "train"));
    return note_data(&p->valid, t, then, "data.valid", "valid");
}

static lt_err start(void *of, lt_training *t) {
    lt_preference_objective *p = of;
    char hex[17];
    if (!p->row->reference) {
        return LT_OK;
    }
    LT_TRY(lt_preference_reference(p, &p->train, t, "data.train", p->was[0], hex));
    (void)json_object_set_new(t->data, "reference", json_string(hex));
    if (p->valid.rows.n > 0) {
        LT_TRY(lt_preference_reference(p, &p->valid, t, "data.valid", p->was[1], hex));
        (void)json_object_set_new(t->data, "reference_valid", json_string(hex));
    }
    return LT_OK;
}

static void close_all(void *of) {
    lt_preference_objective *p = of;
    lt_preferences_close(&p->train.rows);
    lt_preferences_close(&p->valid.rows);
    free(p->train.reference);
    free(p->valid.reference);
    free(p->logp);
    free(p->dlogp);
    lt_steps_close(&p->steps);
    lt_arena_close(&p->mismatched.arena);
}

lt_objective lt_preference_open(lt_preference_objective *p, const lt_recipe *r) {
    const lt_align_objective *row = lt_recipe_align(r);
    LT_ASSERT(row != NULL);
    *p = (lt_preference_objective){
        .row = row,
        .block = r->batch,
        .options = {.beta = row->beta ? r->align_beta : 0.0,
                    .smoothing = row->smoothing ? r->align_smoothing : 0.0,
                    .margin = row->margin && row->given == LT_ALIGN_PAIR ? r->align_margin : 0.0,
                    .center = row->center ? r->align_center : 0.0,
                    .good = row->weights ? r->align_good : 0.0,
                    .bad = row->weights ? r->align_bad : 0.0}};
    return (lt_objective){.of = p,
                          .kind = "preference",
                          .metrics = lt_preference_metrics,
                          .n_metrics = LT_PREFERENCE_METRIC_COUNT,
                          .open = open_sets,
                          .data = data,
                          .start = start,
                          .begin = lt_preference_is_kto(p) ? begin : NULL,
                          .loss = loss_of,
                          .report = report,
                          .close = close_all};
}
