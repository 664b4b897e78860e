/* open.c: opens a run from a recipe until it is ready for its next step, and closes it. Order
 * matters: the folder is locked before anything is read from it, and the checkpoint is loaded last,
 * over a complete run. */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/log.h"
#include "base/thread.h"
#include "data/tokenize.h"
#include "kernels/peak.h"
#include "platform/telemetry/identity.h"
#include "tensor/ops.h"
#include "train/adapters.h"
#include "train/recipe/fit.h"
#include "train/run.h"
#include "train/together_impl.h"

int lt_training_dp(const lt_training *t) {
    return lt_training_has_ranks(t) ? t->world->dp : 1;
}

int lt_training_dp_rank(const lt_training *t) {
    return lt_training_has_ranks(t) ? t->world->dp_rank : 0;
}

int lt_training_shares(const lt_training *t) {
    return lt_training_dp(t) * (int)t->recipe.sites;
}

int lt_training_tp(const lt_training *t) {
    return lt_training_has_ranks(t) ? t->world->shape.tp : 1;
}

int lt_training_cp(const lt_training *t) {
    return lt_training_has_ranks(t) ? t->world->shape.cp : 1;
}

bool lt_training_has_ranks(const lt_training *t) {
    return t->world != NULL && t->world->comm != NULL;
}

bool lt_training_is_divided(const lt_training *t) {
    return lt_training_has_ranks(t) && (t->recipe.zero > 0 || lt_world_is_divided(t->world));
}

bool lt_training_is_whole_nowhere(const lt_training *t) {
    return lt_training_has_ranks(t) && (t->recipe.zero == 3 || lt_world_is_divided(t->world));
}

lt_board *lt_training_board(const lt_training *t) {
    return t->world != NULL ? t->world->board : NULL;
}

static lt_err open_folder(lt_training *t) {
    const char *out = t->recipe.out;
    LT_TRY(lt_file_make_dirs(out));
    LT_TRY(lt_path_join(t->checkpoints, out, "checkpoints"));
    LT_TRY(lt_path_join(t->metrics_path, out, "metrics.jsonl"));
    if (t->together != NULL) { /* One file stops all runs. */
        memcpy(t->exit_path, t->together->exit_path, sizeof t->exit_path);
        return LT_OK;
    }
    return lt_path_join(t->exit_path, out, "exit");
}

/* ---- Work of the leading rank for all ---- */

static lt_err lead_lock(lt_training *t) {
    char path[LT_PATH_BYTES];
    const char *out = t->recipe.out;

    lt_lease_identify(&t->lease);
    LT_TRY(lt_lease_take(&t->lease, out));
    if (t->together != NULL) { /* Folder and log are shared by all runs. */
        return LT_OK;
    }
    if (!lt_training_has_ranks(t) || lt_comm_rank(t->world->comm) == 0) {
        lt_board_folder(lt_training_board(t), out);
    }
    LT_TRY(lt_path_join(path, out, "log.txt"));
    return lt_log_to_file(path);
}

/* ---- Work of every rank ---- */

static lt_err open_tokenizer(lt_training *t) {
    const lt_training *host = lt_training_host(t);
    t->tokenizer_info = lt_training_no_tokenizer;
    if (t->recipe.tokenizer[0] == '\0') {
        return LT_OK;
    }
    if (host != t && strcmp(host->recipe.tokenizer, t->recipe.tokenizer) == 0) {
        t->tokenizer = host->tokenizer;
        t->tokenizer_info = host->tokenizer_info;
        return LT_OK;
    }
    LT_TRY(lt_training_open_tokenizer(&t->tokenizer, &t->recipe));
    malloc_trim(0); /* Return the temporary memory of reading. */
    t->tokenizer_bytes = lt_memory_grown(t->program_bytes);
    t->tokenizer_info = lt_tokenizer_describe(t->tokenizer);
    return LT_OK;
}

static void carve_rows(lt_step_rows *s, int64_t batch, int64_t seq, bool weights, lt_arena *a) {
    const size_t bytes = (size_t)(batch * seq) * sizeof(int32_t);
    s->batch = (lt_row_batch){.ids = {.batch = batch, .seq = seq}};
    s->batch.ids.tokens = lt_arena_take(a, bytes, LT_ARENA_ALIGN); /* (batch, seq) each */
    s->batch.ids.labels = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    s->batch.ids.doc_start = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    s->batch.ids.positions = lt_arena_take(a, bytes, LT_ARENA_ALIGN);
    s->batch.weights = weights ? lt_arena_take(a, bytes, LT_ARENA_ALIGN) : NULL;
    s->batch.index = lt_arena_take(a, (size_t)batch * sizeof *s->batch.index, LT_ARENA_ALIGN);
}

size_t lt_step_rows_bytes(int64_t batch, int64_t seq, bool weights) {
    lt_step_rows s;
    lt_arena a = {0};
    carve_rows(&s, batch, seq, weights, &a);
    return a.used_bytes;
}

lt_err lt_step_rows_open(lt_step_rows *s, int64_t batch, int64_t seq, bool weights) {
    carve_rows(s, batch, seq, weights, &s->arena);
    LT_TRY(lt_arena_open(&s->arena, "rows of tokens"));
    carve_rows(s, batch, seq, weights, &s->arena);
    return LT_OK;
}

const lt_training *lt_training_host(const lt_training *t) {
    return t->together != NULL ? &t->together->runs[0] : t;
}

lt_pass_options lt_training_pass_options(const lt_training *t) {
    lt_pass_options o = lt_fit_pass_options(&t->recipe, !t->device->backend->host_memory);
    o.weights = o.weights || t->source.weights || t->objective != NULL;
    o.keep_logits = lt_training_host(t)->keep_logits;
    if (lt_training_has_ranks(t) && t->world->shape.ep > 1) {
        o.experts = lt_world_twin(t->world, t->world->mesh.ep);
        o.experts_host = t->world->mesh.ep;
        o.expert_room = t->recipe.expert_room;
    }
    if (lt_training_cp(t) > 1) {
        o.seq /= lt_training_cp(t);
        o.context = (lt_context_options){lt_world_twin(t->world, t->world->mesh.cp),
                                         (lt_context_kind)t->recipe.context};
    }
    lt_fit_divide(&o, &t->shards, &t->parts, lt_training_is_divided(t));
    o.tp = lt_training_has_ranks(t) ? lt_world_twin(t->world, t->world->mesh.tp) : NULL;
    if (t->together != NULL) {
        o.batch = t->together->pass_rows;
        o.joins = t->together->n;
    }
    return o;
}

lt_queue *lt_training_queue(const lt_training *t) {
    return t->pipeline != NULL ? lt_pipeline_queue(t->pipeline) : lt_pass_queue(t->pass);
}

static lt_err backward_begins(void *of, int chunk) {
    return lt_zero_begin_batch(of, chunk);
}

static lt_err drop_batches(void *of) {
    return lt_zero_drop(of);
}

int lt_training_passes_of(const lt_training *t, lt_pass *passes[LT_MAX_LAYERS]) {
    passes[0] = t->pass;
    return t->pipeline != NULL ? lt_pipeline_passes(t->pipeline, passes) : 1;
}

void lt_training_use_adapters(lt_training *t, bool on) {
    lt_pass *passes[LT_MAX_LAYERS];
    const int n = lt_training_passes_of(t, passes);
    for (int i = 0; i < n; i++) {
        lt_pass_use_adapters(passes[i], on);
    }
}

void lt_training_set_temperature(lt_training *t, float temperature) {
    lt_pass *passes[LT_MAX_LAYERS];
    const int n = lt_training_passes_of(t, passes);
    for (int i = 0; i < n; i++) {
        lt_pass_set_temperature(passes[i], temperature);
    }
}

/* Divide among the ranks that hold the same, over the passes of this one. */
static lt_err open_zero(lt_training *t) {
    lt_pass *passes[LT_MAX_LAYERS];
    const int n = lt_training_passes_of(t, passes);
    lt_zero *before = t->member > 0 ? &t->together->runs[t->member - 1].zero : NULL;
    if (t->pipeline != NULL && t->shards.level > 1 && before == NULL) {
        lt_pipeline_tell_begins(t->pipeline,
                                (lt_pipeline_begins){backward_begins, drop_batches, &t->zero});
    }
    return lt_zero_open(&t->zero, &t->shards,
                        &(lt_zero_args){.model = t->lora != NULL ? t->lora->params : t->model,
                                        .trained = t->trained,
                                        .base = t->model,
                                        .kept = t->kept,
                                        .lora = t->lora,
                                        .gradients = lt_training_pass_gradients(t),
                                        .passes = passes,
                                        .n_passes = n,
                                        .joins = t->together != NULL,
                                        .before = before});
}

static lt_err unit_updated(void *of, int unit) {
    return lt_zero_updated(of, unit);
}

/* Join the pass, or the pipeline, of the first of several runs. */
static lt_err join(lt_training *t) {
    return t->pipeline != NULL ? lt_pipeline_join(t->pipeline, t->lora, t->micro)
                               : lt_pass_join(t->pass, t->lora, t->micro);
}

size_t lt_training_join_bytes(const lt_training *t) {
    return t->pipeline != NULL ? lt_pipeline_join_bytes(t->pipeline, t->member)
                               : lt_pass_join_bytes(t->pass, t->member);
}

static lt_err open_pass(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_training *host = lt_training_host(t);
    const lt_pass_options o = lt_training_pass_options(t);

    if (r->seq > lt_model_spec_context(&t->model->spec)) {
        LT_FAIL(LT_ERR_ARG, "data.seq = %lld is longer than the model's %lld positions",
                (long long)r->seq, (long long)lt_model_spec_context(&t->model->spec));
    }
    if (host != t) {
        t->pass = host->pass;
        t->pipeline = host->pipeline;
        t->pass_memory = host->pass_memory;
    } else if (lt_training_has_pipeline(t)) {
        LT_TRY(lt_training_open_pipeline(t, &o));
    } else {
        LT_TRY(lt_pass_measure(&t->pass_memory, &t->model->spec, t->model->options.dtype, &o));
        LT_TRY(lt_pass_open(&t->pass, t->model, &o));
    }
    LT_TRY(t->together != NULL ? join(t) : LT_OK);
    const lt_optimiser_share share = {
        &t->trained->table, &t->trained->master,
        t->trained->options.dtype != LT_F32 ? &t->trained->weights : NULL, &t->shards};
    LT_TRY(lt_optimiser_open_share(&t->optimiser, r, t->trained, &share, lt_training_queue(t)));
    if (lt_training_has_ranks(t)) {
        LT_TRY(open_zero(t));
        t->optimiser.updated = unit_updated;
        t->optimiser.of = &t->zero;
    }
    LT_TRY(lt_saver_open(t));
    LT_TRY(lt_invariant_open(&t->invariant, r, t->world, t->model));
    for (int i = 0; i < 2; i++) {
        LT_TRY(lt_step_rows_open(&t->draws[i].rows,
                                 lt_recipe_largest_batch(r) * lt_recipe_together(r), r->seq,
                                 o.weights));
    }
    return lt_step_rows_open(&t->valid_rows, t->micro, r->seq, o.weights);
}

/* divided: the rows are those of a step, which sites divide among themselves. */
static lt_loader_options loader_options(const lt_training *t, const lt_mixture *m, bool divided) {
    const lt_recipe *r = &t->recipe;
    lt_loader_options o = lt_loader_defaults();
    o.sources = m->sources;
    o.n_sources = m->n_sources;
    o.seq = r->seq;
    o.vocab_size = t->model->spec.vocab_size;
    o.seed = (uint64_t)r->seed;
    LT_ASSERT(r->packing != LT_RECIPE_PACK_AUTO); /* It has been resolved. */
    o.packing = (lt_pack)(r->packing - LT_RECIPE_PACK_STREAM);
    o.shuffle = (lt_shuffle)r->shuffle;
    o.shuffle_rows = o.packing == LT_PACK_STREAM && o.shuffle == LT_SHUFFLE_ROWS ? r->shuffle_rows
                                                                                 : 0;
    o.bos_id = t->model->spec.bos_id;
    o.eod_id = lt_model_spec_eos(&t->model->spec);
    o.pad_id = t->model->spec.pad_id;
    o.add_bos = r->add_bos;
    o.add_eod = r->add_eod;
    o.mask_documents = r->mask_documents;
    o.reset_positions = r->reset_positions;
    o.mask_eod = r->mask_eod && o.eod_id >= 0;
    o.goldfish_k = r->goldfish_k;
    o.goldfish_h = r->goldfish_h;
    o.prefetch_rows = r->prefetch;
    o.rank = lt_training_dp_rank(t);
    o.world = lt_training_dp(t);
    if (r->sites > 1 && divided) {
        o.rank += (int)r->site * o.world;
        o.world *= (int)r->sites;
    }
    o.store = t->shard_cache != NULL ? lt_shard_cache_store(t->shard_cache) : NULL;
    if (r->val_fraction > 0.0) {
        o.split = LT_SPLIT_TRAIN;
        o.val_fraction = r->val_fraction;
    }
    return o;
}

/* The same data in order, once, without options that only affect training. */
static void validation_options(lt_training *t, const lt_mixture *m) {
    lt_loader_options *o = &t->valid_options;
    *o = loader_options(t, m, false);
    o->split = t->recipe.val_fraction > 0.0 ? LT_SPLIT_VAL : LT_SPLIT_ALL;
    o->shuffle = LT_SHUFFLE_NONE;
    o->shuffle_rows = 0;
    o->epochs = 1;
    o->goldfish_k = 0;
    o->prefetch_rows = 0;
}

/* Samples and bits per byte would be wrong; the loss is not affected. */
static lt_err tell_other_tokenizers(const lt_training *t, const lt_mixture *mixture) {
    for (int64_t i = 0; i < mixture->n_sources && t->tokenizer != NULL; i++) {
        const char *path = mixture->sources[i].path;
        char *made_with = NULL;
        LT_TRY(lt_tokenize_other_tokenizer(&made_with, path, t->tokenizer, t->recipe.tokenizer));
        if (made_with != NULL) {
            lt_log_warn("shard %s was made with another tokenizer (%s) than data.tokenizer %s: "
                        "samples and bits per byte will be wrong",
                        path, made_with, t->recipe.tokenizer);
        }
        free(made_with);
    }
    return LT_OK;
}

/* Whether shards are read one after another. Shards alone are never conversations, which `auto`
 * would pack differently. */
static bool reads_in_order(const lt_recipe *r) {
    const lt_loader_options o = {.shuffle = (lt_shuffle)r->shuffle,
                                 .shuffle_rows = r->shuffle_rows,
                                 .packing = r->packing == LT_RECIPE_PACK_AUTO
                                                ? LT_PACK_STREAM
                                                : (lt_pack)(r->packing - LT_RECIPE_PACK_STREAM)};
    return lt_loader_in_order(&o);
}

/* Rows in random order are read from many shards at once: all of these must fit in memory. */
static lt_err check_budget(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    size_t window, bytes;
    if (t->shard_cache == NULL) {
        return LT_OK;
    }
    bytes = lt_loader_far_bytes(t->loader, &window);
    lt_shard_cache_spare(t->shard_cache, window);
    if (r->shuffle == LT_SHUFFLE_NONE || bytes <= (size_t)r->cache_bytes) {
        return LT_OK;
    }
    LT_FAIL(LT_ERR_ARG,
            "data.cache_bytes = %lld, but rows in the order of data.shuffle = %s are read from "
            "%zu bytes of shards at once, which would be fetched again and again: set "
            "data.shuffle_rows (with data.shuffle = rows) to shuffle within windows, data.shuffle "
            "= none, or a larger budget",
            (long long)r->cache_bytes, r->shuffle == LT_SHUFFLE_ROWS ? "rows" : "documents", bytes);
}

/* Shards with an address are streamed. The recipe keeps the address; the mixture gets the path that
 * the loader opens. */
static lt_err stream_shards(lt_training *t, lt_mixture *m) {
    const lt_recipe *r = &t->recipe;
    char path[LT_PATH_BYTES];
    for (int64_t i = 0; r->cache[0] != '\0' && i < m->n_sources; i++) {
        if (!lt_shard_cache_takes(m->sources[i].path)) {
            continue;
        }
        if (t->shard_cache == NULL) {
            LT_TRY(
                lt_shard_cache_open(&t->shard_cache, r->cache, r->cache_bytes, reads_in_order(r)));
        }
        LT_TRY(lt_shard_cache_add(t->shard_cache, path, m->sources[i].path));
        m->made[i] = strdup(path);
        if (m->made[i] == NULL) {
            LT_FAIL(LT_ERR_OOM, "path of a shard");
        }
        m->sources[i].path = m->made[i];
    }
    return LT_OK;
}

static lt_err read_mixture(lt_training *t, lt_mixture *m, const char *text, const char *option) {
    LT_TRY(lt_mixture_parse(m, text, option));
    LT_TRY(lt_training_about(option, stream_shards(t, m)));
    return lt_chat_data_read(m, option, &t->recipe, &t->chat);
}

static lt_err open_data(lt_training *t) {
    lt_loader_options o;

    if (t->objective != NULL) {
        LT_TRY(lt_objective_open(t));
        return t->objective->open(t->objective->of, t);
    }
    LT_TRY(read_mixture(t, &t->train_mixture, t->recipe.train, "data.train"));
    /* Before a loader reads, so that the cache knows all shards. */
    if (t->recipe.valid[0] != '\0') {
        LT_TRY(read_mixture(t, &t->valid_mixture, t->recipe.valid, "data.valid"));
    }
    o = loader_options(t, &t->train_mixture, true);
    LT_TRY(lt_training_about("data.train", lt_loader_open(&t->loader, &o)));
    LT_TRY(check_budget(t));
    if (t->source.next == NULL) {
        t->source = lt_rows_of_loader(t->loader);
    }
    LT_TRY(tell_other_tokenizers(t, &t->train_mixture));
    if (t->recipe.valid[0] != '\0') {
        LT_TRY(tell_other_tokenizers(t, &t->valid_mixture));
        validation_options(t, &t->valid_mixture);
    } else if (t->recipe.val_fraction > 0.0) {
        validation_options(t, &t->train_mixture);
    }
    return lt_training_check_validation(t);
}

static lt_err open_token_bytes(lt_training *t) {
    const int64_t vocab = t->model->spec.vocab_size;
    if (t->tokenizer == NULL) {
        return LT_OK;
    }
    t->token_bytes = calloc((size_t)vocab, sizeof *t->token_bytes);
    if (t->token_bytes == NULL) {
        LT_FAIL(LT_ERR_OOM, "byte counts of %lld tokens", (long long)vocab);
    }
    for (uint32_t id = 0; id < t->tokenizer_info.n_ids; id++) {
        size_t bytes = 0;
        if (lt_tokenizer_piece(t->tokenizer, id, &bytes) != NULL &&
            !lt_tokenizer_is_special(t->tokenizer, id)) {
            t->token_bytes[id] = (int32_t)bytes;
        }
    }
    return LT_OK;
}

static lt_err start_line(lt_training *t) {
    const lt_model_spec *s = &t->model->spec;
    const int64_t trained = t->lora != NULL ? t->lora->params->table.whole_elements
                                            : lt_model_spec_params(s);
    return lt_metrics_put(
        &t->metrics,
        json_pack(
            "{s:s, s:I, s:s, s:I, s:s, s:I, s:I, s:I, s:s, s:s, s:i, s:s, s:f, s:I, s:o}", "kind",
            "start", "step", (json_int_t)t->state.step, "version", lt_version(), "steps",
            (json_int_t)t->recipe.steps, "model", lt_family_name(s->family), "parameters",
            (json_int_t)lt_model_spec_params(s), "trained_parameters", (json_int_t)trained,
            "active_parameters", (json_int_t)lt_model_spec_active_params(s), "dtype",
            lt_dtype_name(t->model->options.dtype), "device", t->model->backend->name, "threads",
            lt_thread_count(), "mfu_convention", "6N+12LHDT of measured matmul peak", "peak_gflops",
            t->peak_flops * 1e-9, "announced_bytes", (json_int_t)t->memory.announced_bytes,
            "memory", lt_memory_plan_json(&t->memory)));
}

/* Warn once of options that have no effect, and of a weight decay that flips the weights' sign. */
static void tell_idle(const lt_recipe *r) {
    for (size_t i = 0; i < lt_recipe_table.n_rows; i++) {
        const lt_option *row = &lt_recipe_table.rows[i];
        const char *needs = lt_recipe_idle(r, row);
        char value[LT_OPTION_STR_BYTES];
        if (needs != NULL) {
            lt_option_text(row, r, value, sizeof value);
            lt_log_warn("%s = %s has no effect: it needs %s", row->name, value, needs);
        }
    }
    if (r->lr * r->decay >= 1.0) {
        lt_log_warn(
            "optim.lr = %g times optim.decay = %g: weight decay alone multiplies weights by "
            "%g a step",
            r->lr, r->decay, 1.0 - r->lr * r->decay);
    }
}

/* Nothing was computed between the last sign of the previous attempt and this process. The board
 * knows that time by the monotonic clock; under another launcher it is the last line's time of
 * day. */
static void begin_times(lt_training *t) {
    const double begun_unix_s = lt_clock_unix_s() - (lt_clock_s() - t->start_s);
    const double sign_s = (double)lt_board_before_ns(lt_training_board(t)) * 1e-9,
                 written_s = t->metrics.written_unix_s;
    lt_goodput_begin(&t->goodput, t->start_s,
                     sign_s > 0.0      ? t->start_s - sign_s
                     : written_s > 0.0 ? begun_unix_s - written_s
                                       : 0.0);
}

/* A process of the previous attempt may still hold the port. That must not keep a run from resuming
 * after a fault, so it continues without /metrics. */
static lt_err open_live(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    const lt_identity who = lt_identity_of_process();
    const bool again = who.attempt > 0 || who.epoch > 1;
    const lt_err err = lt_live_open(&t->live, r->metrics_listen, r->out,
                                    lt_family_name(t->model->spec.family), r->steps);
    if (err == LT_ERR_IO && again) {
        lt_log_warn("%s; this attempt goes on without", lt_error_message());
        return LT_OK;
    }
    LT_TRY(err);
    lt_metrics_add_sink(&t->metrics, (lt_metrics_sink){lt_live_row, t->live});
    lt_log_info("metrics: http://%s/metrics", lt_live_address(t->live));
    return LT_OK;
}

/* Open the other receivers of the numbers in metrics.jsonl. */
static lt_err lead_telemetry(lt_training *t) {
    const lt_recipe *r = &t->recipe;
    LT_TRY(r->metrics_listen[0] != '\0' ? open_live(t) : LT_OK);
    if (r->tensorboard) {
        LT_TRY(lt_tensorboard_open(&t->tensorboard, r->out, t->state.step));
        lt_metrics_add_sink(&t->metrics, (lt_metrics_sink){lt_tensorboard_row, t->tensorboard});
    }
    return LT_OK;
}

/* Open metrics, the effective recipe and the page. The other ranks do not need the peak rate. */
static lt_err lead_begin(lt_training *t) {
    const lt_metrics_from from = {
        .step = t->state.step,
        .evaluates = t->state.step == 0 || t->state.step >= t->recipe.steps,
    };
    t->peak_flops = lt_training_host(t)->peak_flops;
    LT_TRY(t->peak_flops == 0.0
               ? lt_matmul_peak_known(&t->peak_flops, t->model->device, t->model->options.dtype)
               : LT_OK);
    LT_TRY(lt_metrics_open(&t->metrics, t->metrics_path, &from, &t->lease));
    begin_times(t);
    LT_TRY(lt_training_write_recipe(t));
    LT_TRY(start_line(t));
    LT_TRY(lt_times_predict(t));
    LT_TRY(lt_training_tell_changes(t));
    if (t->recipe.page > 0) {
        LT_TRY(lt_page_open(&t->page, t->recipe.out, (int)t->recipe.page));
        lt_log_info("live report: http://127.0.0.1:%lld/", (long long)t->recipe.page);
    }
    return lead_telemetry(t);
}

/* Refuse what ranks on GPUs do not support yet. */
static lt_err check_gpus(const lt_training *t) {
    const lt_recipe *r = &t->recipe;
    if (r->zero > 0 && r->shard == 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "mesh.shard = 1 on device %s divides nothing; mesh.zero = 0 does the same",
                t->device->backend->name);
    }
    if (r->zero > 0 && lt_group_size(t->world->mesh.world) == 1) {
        LT_FAIL(LT_ERR_UNSUPPORTED, "mesh.zero = %lld with one rank on device %s: it needs two",
                (long long)r->zero, t->device->backend->name);
    }
    return LT_OK;
}

/* Each rank takes the same number of rows of every step; passes are not larger. */
static lt_err divide_rows(lt_training *t) {
    lt_recipe *r = &t->recipe;
    const lt_mesh_shape shape = {
        .pp = 1, .dp = lt_training_dp(t), .cp = lt_training_cp(t), .tp = 1, .ep = 1};
    const int64_t most = lt_recipe_largest_batch(r) / lt_training_shares(t);
    if (lt_training_has_ranks(t)) {
        LT_TRY(t->device->backend->host_memory ? LT_OK : check_gpus(t));
        LT_TRY(lt_training_host(t) == t ? lt_world_open_device(t->world, t->device) : LT_OK);
    } else if (r->sites == 1) {
        return LT_OK;
    }
    LT_TRY(lt_recipe_divides(r, &shape));
    if (r->micro == 0 && lt_training_has_pipeline(t)) {
        const int64_t rows = most / lt_training_passes(&t->world->shape);
        r->micro = rows > 0 ? rows : 1;
    }
    if (r->micro == 0 || r->micro > most) {
        r->micro = most;
    }
    return LT_OK;
}

static lt_err check_trace(const lt_training *t) {
    const int64_t step = t->recipe.trace_step;
    if (step > 0 && t->state.step >= t->recipe.steps) {
        LT_FAIL(LT_ERR_ARG, "trace_step = %lld: all %lld steps of this run are done",
                (long long)step, (long long)t->recipe.steps);
    }
    if (step > 0 && (step <= t->state.step || step > t->recipe.steps)) {
        LT_FAIL(LT_ERR_ARG, "trace_step = %lld: this run does steps %lld to %lld", (long long)step,
                (long long)t->state.step + 1, (long long)t->recipe.steps);
    }
    return LT_OK;
}

static lt_err open_all(lt_training *t) {
    const bool leads = lt_ranks_lead(&t->ranks);
    LT_TRY(lt_recipe_check(&t->recipe));
    if (t->recipe.layout == LT_LAYOUT_AUTO) {
        LT_FAIL(LT_ERR_UNSUPPORTED,
                "layout = auto: `lateen train` chooses the mesh; here it must be given");
    }
    LT_TRY(lt_chat_data_resolve(&t->recipe));
    LT_TRY(lt_adapters_check(&t->recipe, (int)t->recipe.zero));
    LT_TRY(lt_objective_check(&t->recipe, lt_training_has_ranks(t) ? &t->world->shape : NULL));
    LT_TRY(lt_invariant_check(&t->recipe, t->world));
    LT_TRY(divide_rows(t));
    LT_TRY(open_folder(t));
    if (leads) {
        LT_TRY(lead_lock(t));
        tell_idle(&t->recipe);
    }
    LT_TRY(open_tokenizer(t));
    LT_TRY(lt_chat_data_open(&t->chat, &t->recipe, t->tokenizer));
    LT_TRY(lt_training_open_model(t));
    lt_recipe_resolve(&t->recipe, &t->model->spec);
    LT_TRY(lt_mirror_open(t));
    LT_TRY(lt_training_compare(t));
    LT_TRY(open_pass(t));
    LT_TRY(lt_diloco_open(t));
    LT_TRY(open_data(t));
    LT_TRY(open_token_bytes(t));
    LT_TRY(lt_replay_open(t));
    LT_TRY(lt_memory_plan_make(&t->memory, t));
    lt_guard_open(&t->guard, &t->recipe);
    LT_TRY(lt_training_resume(t));
    LT_TRY(t->resume_newest && t->saved_step >= 0 ? lt_mirror_publish(t, t->saved_step) : LT_OK);
    LT_TRY(lt_replicas_open(t));
    t->first_step = t->state.step + 1;
    LT_TRY(check_trace(t));
    lt_times_open(t);
    t->source.place(t->source.of, &t->place);
    t->energy_start_j = lt_training_energy(t);
    return leads ? lead_begin(t) : LT_OK;
}

lt_err lt_training_open(lt_training *t, const lt_recipe *r, lt_device *device) {
    return lt_training_open_with(t, r, device, &(lt_training_with){.rows = NULL});
}

lt_err lt_training_open_with(lt_training *t, const lt_recipe *r, lt_device *device,
                             const lt_training_with *with) {
    const bool several = with->world != NULL && with->world->comm != NULL &&
                         lt_comm_size(with->world->comm) > 1;
    *t = (lt_training){.recipe = *r,
                       .ranks = with->ranks,
                       .world = with->world,
                       .objective = with->objective,
                       .together = with->together,
                       .member = with->member,
                       .lease = {.lock_fd = -1, .epoch = with->epoch},
                       .snapshots = {.from = -1},
                       .saved_step = -1,
                       .sampled_step = -1,
                       .evaluated_step = -1};
    if (with->snapshots != NULL) {
        t->snapshots = *with->snapshots;
    }
    t->progress.plain_every_s = r->plain_every;
    t->losses_each = 1;
    if (with->rows != NULL) {
        t->source = *with->rows;
    }
    t->start_s = lt_clock_s();
    t->program_bytes = lt_memory_resident();
    if (r->objective != LT_RECIPE_OBJECTIVE_sft && t->objective == NULL) {
        char kind[LT_OPTION_STR_BYTES];
        lt_option_text(lt_option_find(&lt_recipe_table, "objective.kind"), r, kind, sizeof kind);
        LT_FAIL(LT_ERR_UNSUPPORTED, "objective.kind = %s: this caller brings no such objective",
                kind);
    }
    if (device == NULL) {
        LT_TRY(several
                   ? lt_device_open_rank(&t->own_device, r->device, lt_world_local_rank(t->world))
                   : lt_device_open_named(&t->own_device, r->device));
    }
    t->device = device != NULL ? device : t->own_device;
    if (!t->device->backend->host_memory && t->device->backend->memory_left != NULL) {
        size_t left = 0;
        LT_TRY(t->device->backend->memory_left(t->device, &left));
        t->times.left_bytes = (double)left;
    }
    if (r->threads > 0) {
        lt_thread_set_count((int)r->threads);
    }
    LT_TRY(open_all(t));
    t->flops_per_token = t->lora != NULL
                             ? lt_adapters_train_flops(t->lora, &t->model->spec, t->recipe.seq)
                             : lt_model_spec_train_flops(&t->model->spec, t->recipe.seq);
    return LT_OK;
}

void lt_training_close(lt_training *t) {
    const bool guest = lt_training_host(t) != t;
    lt_saver_close(t);
    lt_mirror_close(t);
    lt_replicas_close(t);
    lt_replay_close(t);
    lt_page_close(t->page);
    lt_live_close(t->live);
    lt_metrics_close(&t->metrics);
    lt_tensorboard_close(t->tensorboard);
    lt_loader_close(t->loader);
    lt_shard_cache_close(t->shard_cache);
    lt_objective_close(t);
    lt_diloco_close(t);
    if (t->trained != NULL) {
        lt_optimiser_close(&t->optimiser);
    }
    lt_pass_close(guest ? NULL : t->pass);
    lt_pipeline_close(guest ? NULL : t->pipeline);
    free(t->batches);
    lt_zero_close(&t->zero);
    lt_times_close(t);
    lt_rank_records_close(t->rank_records);
    lt_invariant_close(&t->invariant, t->device);
    if (t->lora != NULL || t->kept != NULL) { /* What is trained is the adapters'. */
        lt_lora_close(t->lora);
        t->trained = t->kept;
    }
    lt_model_close(guest || t->model == t->trained ? NULL : t->model);
    lt_model_close(guest ? NULL : t->trained);
    lt_shards_close(&t->shards);
    lt_chat_source_close(&t->chat);
    lt_mixture_close(&t->train_mixture);
    lt_mixture_close(&t->valid_mixture);
    lt_tokenizer_close(guest && t->tokenizer == lt_training_host(t)->tokenizer ? NULL
                                                                               : t->tokenizer);
    for (int i = 0; i < 2; i++) {
        lt_arena_close(&t->draws[i].rows.arena);
    }
    lt_arena_close(&t->valid_rows.arena);
    lt_run_state_clear(&t->state);
    json_decref(t->changes);
    json_decref(t->compared);
    json_decref(t->data);
    free(t->token_bytes);
    lt_lease_close(&t->lease);
    lt_device_close(t->own_device);
    (void)!lt_log_to_file(NULL);
}
