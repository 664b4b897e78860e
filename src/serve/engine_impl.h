/* engine_impl.h: the internals of the engine: its interface (engine.c, any thread) and the step
 * (step.c, the engine's thread).
 *
 * OWNERSHIP
 *     front, under lock      slots, submitted, cancelled, ready, told; a job's public and told
 *                            fields, its cancel flags
 *     engine's thread alone  sched, forward, steps, plan arrays, samplers; a job's other fields
 *                            once it was submitted
 * The engine takes the lock twice per step, only to move a few pointers and counts. */
#ifndef LT_SERVE_ENGINE_IMPL_H
#define LT_SERVE_ENGINE_IMPL_H

#include <pthread.h>

#include "model/infer/draft_head.h"
#include "model/infer/paged_forward.h"
#include "model/params.h"
#include "tensor/backend.h"
#include "serve/job.h"
#include "serve/page_disk.h"
#include "serve/page_index.h"

/* A token to choose in this step from row `row` of the current logits, on the device (on_device) or
 * from their copy on the host. */
typedef struct {
    lt_job_choice *choice;
    const lt_job_choice *from; /* The choice that owns the row. */
    int64_t row;
    int64_t place; /* Position in the choice's draft. */
    /* leads: the row belongs to it; otherwise it forks from the choice that owns the row. */
    bool on_device, leads;
    lt_sampler_args args;
    lt_pick pick;
    lt_err err;
} lt_token_pick;

/* A row whose logits a step needs. */
typedef struct {
    int64_t item;     /* Index of the step's item. */
    int64_t position; /* Position of the row's token. */
    /* The choice's next token is chosen from it; otherwise it gives the log-probability of the
     * prompt's token at position + 1. */
    bool next;
    bool draft;    /* Its token is one of a draft. */
    bool verifies; /* The device chooses from it for a choice that has a draft. */
    /* on_device: the token is chosen on the device; late: after the tokens of the previous step are
     * known. */
    bool on_device, late;
} lt_wanted;

/* Another draft of a choice in this step: see step_branch.c. */
typedef struct {
    /* A copy of the choice with the branch's sequence, tokens and draft, so that the functions that
     * lay out its rows and make its draft treat it like any other. */
    lt_job_choice as;
    lt_job_choice *of;
    int number;           /* Index among the choice's branches. */
    int32_t *tokens;      /* (max_seq + LT_DRAFT_MOST) */
    int32_t *table;       /* (max_pages sets) */
    bool begins;          /* Its first token is known. */
    struct lt_step *step; /* The step and its item; -1: it was not planned. */
    int64_t item;
} lt_step_branch;

/* The part of a choice in a step. */
typedef struct {
    /* NULL: the choice has ended, and the result is discarded; for a branch: it is not accepted. */
    lt_job_choice *choice;
    int64_t first, n; /* Range of tokens. */
    bool branch;
    bool embed; /* The request needs their hidden states. */
} lt_step_item;

/* A step in flight: it is in the device's queue and its tokens have not been read. */
typedef struct lt_step {
    lt_step_item *items;     /* (max_running + branches) */
    lt_wanted *wanted;       /* (step_tokens) */
    int64_t n_items, n_rows; /* Items and rows of the plan. */
    /* The out_rows of the forward pass: first the wanted rows, then these. */
    int64_t n_logits, n_hidden;
    /* All tokens are chosen on the device and copied to the host without a request
     * (paged_forward.h, send_picks), so the engine can queue the next step. */
    bool sent;
    bool late, whole; /* late: some picks are late. whole: everything has been queued. */
    int64_t n_draft;  /* Number of its draft tokens, */
    int64_t longest;  /* and those of its longest draft. */
    bool in_vain;     /* It waited for drafts and got none. */
    bool ahead;       /* It was queued ahead of another step. */
    /* Its time is typical: its forward pass ran as usual and, if it has no draft, it was one of
     * several queued steps. */
    bool usual;
    bool as_usual; /* Only the first of these two conditions. */
} lt_step;

/* The arguments of the forward pass, which keeps none of them, and of the choice of tokens. All
 * sizes are fixed at open. */
typedef struct {
    int32_t *ids, *positions, *out_rows; /* (step_tokens) */
    int32_t *slots;                      /* (groups, step_tokens) */
    int32_t *q_start, *kv_len;           /* (max_running + branches + 1) */
    int32_t *steer; /* (step_tokens) indices of steering vectors, and their scales */
    float *steer_scale;
    /* (max_running + branches) places of the plan's items among the step's; what they are found
     * with (packs.h); (places + 1) rows of each place of the pool of adapters; (step_tokens) their
     * scales */
    int32_t *item_at, *order, *first_page, *order_scratch, *adapter_start;
    float *adapter_scale;
    int32_t *table;         /* (groups, max_running + branches, max_pages) */
    bool *choose, *on_host; /* (step_tokens) by wanted row; (out_rows) */
    /* (step_tokens), (out_rows) times LT_CHOOSE_HOW_COUNT: options of choose */
    double *how, *more_how;
    int32_t *more_rows; /* (out_rows) */
    /* (max_running + 1), (max_edits, 2): states to begin */
    int32_t *penalty_slots, *penalty_starts, *edits;
    int64_t n_penalty_states;
    lt_token_pick *picks; /* (max_running, and at least out_rows on a device) */
    int32_t *turns;       /* (out_rows) of late picks */
    uint32_t *masks;      /* (max_running, mask_words) */
    float *hidden;        /* (step_tokens, C) of embeddings */
} lt_step_room;

/* A model beside the served one, and the step's item for which its logits were last requested. */
typedef struct {
    lt_paged_forward *forward;
    int32_t *items; /* (max_running) */
    int64_t n_items;
    float *const *logits; /* Logits of the rows that were read last. */
} lt_engine_beside;

/* The rows of a model beside: those of the items that mix it. */
typedef struct {
    int32_t *ids, *positions, *slots; /* (step_tokens) */
    int32_t *q_start, *kv_len;        /* (max_running + 1) */
    int32_t *table, *out_rows;        /* (max_running, max_pages), (max_running) */
} lt_step_beside_rows;

/* The draft model, or the served model's draft head: see step_draft_model.c. */
typedef struct {
    const lt_model *model; /* NULL: there is none. */
    lt_paged_forward *forward;
    const lt_draft_head *head; /* NULL: there is none. */
    lt_draft_pass *pass;
    /* (max_rows) where a head's rows read their hidden states; slots of the first layer's rows */
    int32_t *hidden, *first_slots;
    int64_t n_layers;         /* Layers of the head; 1 for a draft model. */
    lt_draft_times times;     /* Times of its calls, by their rows. */
    int64_t max_rows;         /* Of a call, */
    lt_step_beside_rows rows; /* which has max_rows rows and LT_DRAFT_ROWS sequences. */
    /* (LT_DRAFT_ROWS): choices of the rows whose logits a call needs; on a device, for two calls */
    lt_job_choice **choices;
    float *proposed; /* (LT_DRAFT_ROWS, V) distributions of the draft tokens of a step */
    bool *choose;    /* On a device (LT_DRAFT_ROWS), and how, LT_CHOOSE_HOW_COUNT each. */
    double *how;
    double seconds;    /* Time of the calls of this step. */
    bool recorded;     /* A call of this step was recorded as a graph. */
    double row_s;      /* Seconds per row when it last caught up with a text; 0: not known. */
    double catch_up_s; /* Seconds that this step spent on that. */
    lt_draft_catch_up caught_up;
} lt_step_drafter;

/* A request by another thread to the engine's thread, done between two steps: see
 * engine_pages.c. */
typedef struct lt_engine_question {
    void (*run)(lt_engine *e, void *arg);
    void *arg;
    bool done;
    struct lt_engine_question *next;
} lt_engine_question;

/* The cache on disk: see engine_disk.c. */
typedef struct {
    lt_page_disk *disk; /* NULL: there is none. */
    pthread_t thread;
    bool running;
    lt_arena arena;        /* Memory of all arrays below. */
    lt_page_chain *chains; /* (most_staged): pages waiting to be written to the disk, */
    int32_t *tokens;       /* (most_staged, page_tokens) */
    char *data;            /* (most_staged, page_bytes) */
    /* (page_bytes): a page read from the disk; for a device, of host_alloc */
    void *page;
    lt_queue *queue;      /* Copies pages to a device; NULL: there is none. */
    bool failing;         /* The last page could not be written. */
    pthread_mutex_t lock; /* Protects what follows. */
    pthread_cond_t wake;
    int64_t most_staged, first_staged, n_staged;
    int64_t n_unkept; /* Number of pages that were evicted while most_staged were waiting. */
    lt_job *parked, *parked_last;
    bool closing;
} lt_engine_disk;

/* The cache in host memory beside a device's: see engine_host.c. */
typedef struct {
    lt_arena arena; /* Of the index. */
    lt_page_index index;
    char *data; /* (n_slots, page_bytes) of host_alloc; NULL: there is none. */
    size_t bytes;
    /* For a cache on disk behind it: (n_slots, page_tokens); (n_slots) the number of the send that
     * fills the slot (lt_paged_forward_passed). */
    int32_t *tokens;
    int64_t *sends;
    /* Number of pages copied to host memory and back; tokens of the latter. */
    int64_t n_written, n_read, n_tokens;
} lt_engine_host;

/* The hold that was requested: see refresh.c. */
typedef enum { LT_HOLD_NONE, LT_HOLD_TO_FINISH, LT_HOLD_TO_PREEMPT } lt_hold_state;

struct lt_engine {
    const lt_model *model;
    const lt_model_spec *spec;
    lt_engine_options o;
    lt_job_limits limits;
    lt_engine_cache cache;
    lt_page_groups groups;
    lt_arena arena; /* Everything below that has a length. */
    /* The engine's thread. */
    lt_sched sched;
    lt_paged_forward *forward;
    lt_engine_host host;
    lt_engine_disk disk;
    /* Number of requests that wait for the disk; of tokens read from it. */
    int64_t n_parked, n_disk_tokens;
    lt_engine_beside beside[LT_ENGINE_BESIDE];
    lt_step_beside_rows beside_rows;
    int64_t n_common; /* Ids that all of them have. */
    int64_t n_warmed; /* Number of warm-up steps so far. */
    /* warming: more warm-up steps follow; warming_drafter: they belong to the draft model. */
    bool warming, warming_drafter;
    lt_step steps[LT_STEPS_QUEUED];
    int oldest, n_queued; /* Index of the oldest step in flight, and number of steps in flight. */
    lt_step_room room;
    lt_sampler *samplers; /* (n_samplers): one per thread of a parallel loop */
    int64_t n_samplers, max_pages, out_rows, mask_words;
    /* (n_penalty_slots) owner of each slot of penalty states on the device; NULL: free */
    lt_job_choice **penalty_owners;
    int64_t n_penalty_slots, max_edits;
    lt_hold_state taken_hold;           /* `hold`, as the engine's thread saw it last. */
    lt_job *held_back, *held_back_last; /* Submitted after the hold began; they start after it. */
    int64_t n_held_back;
    int64_t n_lent;   /* Number of threads that read or fill pages: engine_pages.c. */
    uint64_t version; /* Version of the weights. */
    lt_job *touched;  /* Jobs that changed in this step; their changes are published at its end. */
    int64_t n_new_tokens, n_prompt_tokens, n_cached_tokens, n_steps_ahead;
    /* Times of steps; on devices of those without drafts, with short drafts, and of the others
     * (draft.h). */
    lt_draft_times times[3];
    bool waited; /* The next step has waited for tokens, so as to have drafts. */
    lt_step_drafter drafter;
    /* Of all texts: of copied drafts, and of the draft model's; */
    lt_draft_acceptance acceptance[2];
    lt_draft_runs runs[2];     /* the same by runs; */
    lt_draft_others others[2]; /* and of other first tokens. */
    lt_step_branch *branches;  /* (most_branches): the n_branches of the step. */
    int64_t most_branches, n_branches;
    lt_draft_account account;
    /* The last step had drafts; its rows and time, which may make the next one longer; 0: not
     * measured. */
    bool behind_drafts;
    int64_t held_rows;
    bool held_long; /* They were long drafts. */
    double held_s;
    int64_t n_unusual; /* Number of steps with drafts that did not run in the usual way, */
    double unusual_s;  /* and how much longer in total they took than without drafts. */
    double settled_s;  /* When the last step ended, if this one follows immediately; else 0. */
    /* Draft tokens of this step, including the last tokens that branches run again. */
    int64_t step_drafted, step_accepted;
    double plain_s;      /* Time of the next step without drafts; 0: not known. */
    double usual_tokens; /* Tokens of a choice: a mean in which older ones have less weight. */
    int64_t n_drafts, n_drafted, n_accepted, n_accepted_at[LT_DRAFT_MOST];
    int64_t n_all_branches, n_branch_drafted, n_branch_accepted;
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t wake;
    lt_job **slots; /* (n_slots) live jobs by id % n_slots */
    int64_t n_slots, n_live;
    uint64_t n_ids;
    lt_job *submitted, *submitted_last, *cancelled;
    lt_engine_question *questions;
    lt_job *ready, *ready_last; /* Jobs with events for poll. */
    lt_job *told;               /* Jobs that were reported completely; freed at the next poll. */
    int64_t n_submitted, n_submitted_background;
    lt_engine_stats stats;
    bool closing;
    lt_hold_state hold;
    uint64_t hold_last_id; /* Later requests are held back. */
    bool at_rest, refresh; /* refresh: a refresh was requested. */
    pthread_cond_t rested; /* at_rest, refresh or the `done` of a question has changed. */
    lt_err refresh_err;
    char refresh_message[256];
    /* Used by both threads. */
    int event_fd;
    pthread_t thread;
    bool running;
};

/* Whether a model or head that makes drafts has its own keys and values. */
static inline bool lt_engine_has_drafter(const lt_engine *e) {
    return e->drafter.model != NULL || e->drafter.head != NULL;
}

/* Take submissions and cancellations, and run one step. False: there is nothing to do, or the
 * engine is closing. */
bool lt_engine_step(lt_engine *e);
void lt_engine_signal(lt_engine *e); /* Tell the front that there are events to poll. */

/* engine_pages.c: make the engine's thread run a function, and wait for it; on that thread: run the
 * requested functions. */
void lt_engine_ask(lt_engine *e, void (*run)(lt_engine *e, void *arg), void *arg);
void lt_engine_answer(lt_engine *e);
void lt_engine_count_pages(lt_engine *e); /* Update the statistics, under the lock. */
/* UNSUPPORTED if the host cannot read and write the engine's pages or, with by_host, their copies
 * in host memory. Then: the head of a file of n_pages pages. */
LT_MUST_USE lt_err lt_engine_check_pages(const lt_engine *e, bool by_host);
LT_MUST_USE lt_err lt_engine_page_head(lt_page_file_head *out, const lt_engine *e, int64_t n_pages);

/* engine_host.c: open the cache in host memory, before the first step; close it, after the forward
 * is closed; copy its pages of a new sequence to the device; forget all pages. */
LT_MUST_USE lt_err lt_engine_open_host(lt_engine *e);
void lt_engine_close_host(lt_engine *e);
void lt_engine_bring(lt_engine *e, lt_seq *seq);
void lt_engine_forget_host(lt_engine *e);

/* engine_disk.c: if there is a cache on disk, write a page of these tokens, whose data is in host
 * memory, unless it is already there. */
void lt_engine_stage(lt_engine *e, lt_page_chain chain, const int32_t *tokens, const void *data);
/* Open the cache on disk, which backs that in host memory, before the engine's thread starts; stop
 * its thread before the engine's thread ends; write the pages of the pool, and close it. */
LT_MUST_USE lt_err lt_engine_open_disk(lt_engine *e);
void lt_engine_stop_disk(lt_engine *e);
void lt_engine_close_disk(lt_engine *e);
/* If the disk has pages of a new job's prompt that are not in the pool, make the job wait for them.
 * True: it waits, and lt_step_begin_parked (step.c) begins it later. */
bool lt_engine_park(lt_engine *e, lt_job *j);
void lt_step_begin_parked(lt_engine *e, lt_job *j);

/* refresh.c. If the engine is held, its thread waits here for a refresh or the end. True: it
 * waited, and there may be work. */
bool lt_engine_rest(lt_engine *e);
/* Preempt all running sequences; no step may be in flight. */
void lt_step_preempt_all(lt_engine *e);

/* step_rows.c: carve the arrays; turn the plan into the step's items and the forward's arrays. */
void lt_step_carve(lt_engine *e, lt_arena *a);
LT_MUST_USE lt_err lt_step_lay_out(lt_engine *e, lt_step *s, lt_paged_forward_rows *out);

/* step_order.c: carve its arrays; sort the plan's items by their first pages and adapters into
 * item_at; the rows of items that have an adapter. */
void lt_step_carve_order(lt_engine *e, lt_arena *a);
void lt_step_order(lt_engine *e);
void lt_step_adapt(lt_engine *e, const lt_step *s, lt_paged_forward_rows *out);

/* step.c, for step_pick.c: mark a job as changed; finish a choice; fail a choice together with
 * those of its request that would have forked from it. */
void lt_step_touch(lt_engine *e, lt_job *j);
void lt_step_finish(lt_engine *e, lt_job_choice *s, lt_finish why, lt_err failure);
void lt_step_fail(lt_engine *e, lt_job_choice *s, lt_err failure);

/* step_penalties.c: does the device pick the choice's tokens? Fill in how it picks the next one and
 * update its penalty state (row mask_row of masks, if a grammar applies); release the penalty state
 * of a choice; queue the states that must be set. */
bool lt_step_on_device(const lt_engine *e, const lt_job_choice *s);
bool lt_step_counts(const lt_job_choice *s); /* Whether it may need a penalty state. */
LT_MUST_USE lt_err lt_step_how(lt_engine *e, lt_job_choice *s, const lt_sampler_args *args,
                               int64_t mask_row, double how[LT_CHOOSE_HOW_COUNT]);
void lt_step_drop_penalties(lt_engine *e, lt_job_choice *s);
LT_MUST_USE lt_err lt_step_begin_penalties(lt_engine *e);

/* step_shift.c: the choice has as many tokens as a sequence may have: drop the oldest. */
void lt_step_shift(lt_engine *e, lt_job_choice *s);

/* step_beam.c: the candidates of one beam are known. */
void lt_step_beam(lt_engine *e, lt_job_choice *s, const lt_pick *pick);

/* step_guide.c: the logits of a guided choice or of its shadow are known. */
void lt_step_guide(lt_engine *e, lt_job_choice *s, const float *logits);
/* step_beside.c: open, carve and close; copy a page in the pools of all models beside; queue the
 * rows of items that mix them, which makes the step one that is not sent; read their logits into
 * the choices; the mixture (V) of the served model's logits with what `from` has of the others. */
LT_MUST_USE lt_err lt_step_open_beside(lt_engine *e, const lt_paged_forward_options *o);
void lt_step_carve_beside(lt_engine *e, lt_arena *a);
void lt_step_close_beside(lt_engine *e);
LT_MUST_USE lt_err lt_step_copy_page_beside(lt_engine *e, int64_t dst, int64_t src);
LT_MUST_USE lt_err lt_step_run_beside(lt_engine *e, lt_step *s, const lt_paged_forward_rows *all);
LT_MUST_USE lt_err lt_step_read_beside(lt_engine *e, const lt_step *s);
LT_MUST_USE lt_err lt_step_blend(const lt_engine *e, const lt_job_choice *from, const float *logits,
                                 float *mixed);
/* step_pick.c: append the token to its choice, or fail it. */
void lt_step_append(lt_engine *e, lt_token_pick *c);

/* step_draft.c: are there drafts on a device? Should the next step wait for the tokens of the step
 * in flight, so that it can have drafts? Choose drafts for running sequences, before the plan;
 * count the accepted tokens of a choice's draft, when it ends or after the step; of all choices of
 * the step. */
bool lt_step_drafts_on_device(const lt_engine *e);
bool lt_step_waits(lt_engine *e);
void lt_step_draft(lt_engine *e);
void lt_step_count_draft(lt_engine *e, lt_job_choice *c);
void lt_step_settle(lt_engine *e, const lt_step *s, double seconds);

/* step_branch.c: the most branches of a step; carve; may this choice have some? Let branch `number`
 * of a choice with n draft tokens join the plan; the plan has it as an item; the next token is not
 * the draft's first one, so if it is that of a branch, the branch takes the draft's place; count
 * the branches and drop them all. */
LT_MUST_USE lt_err lt_step_size_branches(lt_engine *e);
void lt_step_carve_branches(lt_engine *e, lt_arena *a);
bool lt_step_may_branch(const lt_engine *e, const lt_job_choice *s);
void lt_step_branch_off(lt_engine *e, lt_job_choice *s, int number, int64_t n);
lt_step_branch *lt_step_branch_of(const lt_sched_item *item); /* NULL: it is not a branch. */
void lt_step_miss(lt_engine *e, lt_job_choice *s, int32_t id);
void lt_step_count_branches(lt_engine *e);
void lt_step_drop_branches(lt_engine *e);

/* step_draft_model.c: open, before the served model's forward, which may have to keep hidden states
 * for a head; carve; the number of tokens of a sequence that the draft model has run, of those that
 * it can run, without the last; how many it must run for its first draft token; forget the tokens
 * that it has run after those that are known now. */
LT_MUST_USE lt_err lt_step_open_drafter(lt_engine *e, const lt_paged_forward_options *o);
void lt_step_carve_drafter(lt_engine *e, lt_arena *a);
int64_t lt_step_draft_known(const lt_engine *e, const lt_seq *seq);
int64_t lt_step_draft_behind(const lt_engine *e, const lt_seq *seq);
void lt_step_draft_cut(lt_engine *e, const lt_seq *seq);
/* For the plan: copy pages, catch up with texts, and write drafts after the tokens of sequences.
 * After a failure the draft model is no longer used. */
void lt_step_propose(lt_engine *e);
/* A call of the draft model begins; tokens [first, first + n) of a sequence join it, and the logits
 * of the last may be wanted, for draft token `place`. Draft tokens that the plan has given an
 * item. */
lt_paged_forward_rows lt_step_draft_call(lt_engine *e);
void lt_step_draft_rows(lt_engine *e, lt_paged_forward_rows *call, const lt_seq *seq, int64_t place,
                        int64_t first, int64_t n, bool wanted);
int64_t lt_step_draft_planned(const lt_sched_item *item);

/* step_draft_chain.c: the drafts of a step on a device. */
LT_MUST_USE lt_err lt_step_propose_chain(lt_engine *e);
/* Set how the draft token at this position is chosen. */
void lt_step_draft_how(const lt_job_choice *s, int64_t place, double *how);
/* step_draft_head.c: the pass of a head; the layer that makes draft token `place`; its rows at
 * positions [first, first + n): their tokens, their slots, and the sources of their hidden
 * states. */
LT_MUST_USE lt_err lt_step_open_head(lt_engine *e, const lt_paged_forward_options *o);
int64_t lt_step_head_layer(const lt_engine *e, int64_t place);
void lt_step_head_rows(lt_engine *e, const lt_seq *seq, int64_t place, int64_t row, int64_t first,
                       int64_t n);
/* On a device: the call chooses draft token `place` of each text; take them. */
void lt_step_head_chooses(lt_engine *e, lt_paged_forward_rows *call, int64_t place);
LT_MUST_USE lt_err lt_step_take_head(lt_engine *e, const lt_paged_forward_rows *call,
                                     int64_t place);

/* step_pick.c: queue the late picks of wanted rows [first, first + n); read the tokens of a step
 * that was sent; of another step, read those of wanted rows [first, first + n), then its hidden
 * states. */
LT_MUST_USE lt_err lt_step_choose_late(lt_engine *e, const lt_step *s, int64_t first, int64_t n);
LT_MUST_USE lt_err lt_step_take(lt_engine *e, const lt_step *s);
LT_MUST_USE lt_err lt_step_pick(lt_engine *e, const lt_step *s, int64_t first, int64_t n);
LT_MUST_USE lt_err lt_step_use_hidden(lt_engine *e, const lt_step *s);

#endif
