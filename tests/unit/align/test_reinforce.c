/* A draw of reinforcement learning without a model: answers from a script, whose rewards are
 * their lengths, so that each number can be worked out by hand. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "align/ahead.h"
#include "align/reinforce.h"
#include "base/error.h"

#define LIMIT  20 /* Most tokens of an answer; the reward "length" is tokens / LIMIT. */
#define MOST   64 /* Most questions that a script records. */
#define PROMPT 3

static lt_tokenizer *tokenizer;

static void must(lt_err err) {
    if (err != LT_OK) {
        fail_msg("%s", lt_error_message());
    }
}

static void close_to(double got, double want) {
    if (!(fabs(got - want) <= 1e-12 * fmax(1.0, fabs(want)))) {
        fail_msg("got %.15g, want %.15g", got, want);
    }
}

/* The length of each answer in tokens, in the order in which answers are requested, repeated; the
 * model ended those with an even number. The script records the questions. */
typedef struct {
    const int64_t *lengths;
    int64_t n_lengths, n_answers, n_calls, calls[MOST];
    const int32_t *prompts[MOST];
    uint64_t seeds[MOST];
    int64_t n_asked, group;
    bool greedy;
    lt_err fails;
    int32_t ids[MOST][LIMIT];
    float logp[MOST][LIMIT];
} script;

static lt_err answer(void *of, const lt_rollout_args *asked, lt_answer *answers,
                     lt_rollout_stats *stats) {
    script *s = of;
    LT_TRY(s->fails);
    *stats = (lt_rollout_stats){.refresh_s = 0.25, .draw_s = 0.5};
    s->group = asked->group;
    s->greedy = asked->greedy;
    s->calls[s->n_calls++] = asked->n;
    for (int64_t q = 0; q < asked->n; q++) {
        assert_true(s->n_asked < MOST && asked->questions[q].n_prompt == PROMPT);
        s->prompts[s->n_asked] = asked->questions[q].prompt;
        s->seeds[s->n_asked++] = asked->questions[q].seed;
    }
    for (int64_t i = 0; i < asked->n * asked->group; i++, s->n_answers++) {
        const int64_t n = s->lengths[s->n_answers % s->n_lengths], at = s->n_answers % MOST;
        for (int64_t t = 0; t < n; t++) {
            s->ids[at][t] = (int32_t)(10 + t);
            s->logp[at][t] = -0.125f * (float)(t + 1);
        }
        answers[i] = (lt_answer){
            .ids = s->ids[at], .logp = s->logp[at], .n = n, .ended = n % 2 == 0};
    }
    return LT_OK;
}

/* Problems whose prompts begin with 100 and their index. */
typedef struct {
    int32_t prompts[8][PROMPT];
    lt_problem items[8];
    lt_problems all;
} asked_of;

static void ask_of(asked_of *p, int64_t n) {
    *p = (asked_of){.all = {.items = p->items, .n = n}};
    for (int64_t i = 0; i < n; i++) {
        memcpy(p->prompts[i], (int32_t[]){100 + (int32_t)i, 8, 9}, sizeof p->prompts[i]);
        p->items[i] = (lt_problem){.prompt = p->prompts[i], .n_prompt = PROMPT, .path = "p"};
    }
}

/* Everything that a draw needs. */
typedef struct {
    script script;
    asked_of asked;
    lt_rewards *rewards;
    lt_reinforce r;
} bench;

static lt_reinforce_options options(void) {
    return (lt_reinforce_options){.advantage = LT_ALIGN_GRPO,
                                  .answers = 4,
                                  .group = 2,
                                  .updates = 1,
                                  .passes = 1,
                                  .max_tokens = LIMIT,
                                  .ranks = 1,
                                  .seed = 11,
                                  .tokenizer = tokenizer};
}

static void bench_open(bench *b, const lt_reinforce_options *o, int64_t problems, const char *sum,
                       const int64_t *lengths, int64_t n_lengths) {
    const lt_reward_options how = {
        .sum = sum, .command = "", .max_tokens = LIMIT, .tokenizer = tokenizer};
    memset(b, 0, sizeof *b);
    ask_of(&b->asked, problems);
    b->script.lengths = lengths;
    b->script.n_lengths = n_lengths;
    must(lt_rewards_open(&b->rewards, &how));
    must(
        lt_reinforce_open(&b->r, o, &b->asked.all, b->rewards, &(lt_answerer){&b->script, answer}));
}

static void bench_close(bench *b) {
    lt_reinforce_close(&b->r);
    lt_rewards_close(b->rewards);
}

/* ---- Questions ---- */

static void draw_times(bench *b, int n) {
    for (int i = 0; i < n; i++) {
        must(lt_reinforce_draw(&b->r));
    }
}

/* Each pass over the problems asks each of them once; no two questions have the same seed. Two
 * ranks ask, question by question, what one rank asks. */
static void questions_are_permutations(void **state) {
    static const int64_t lengths[] = {3, 5};
    static bench one, two[2];
    lt_reinforce_options o = options();
    bool moved = false;
    (void)state;
    bench_open(&one, &o, 5, "length", lengths, 2);
    draw_times(&one, 10);
    assert_int_equal(one.r.asked, 20);
    for (int pass = 0; pass < 4; pass++) {
        int times[5] = {0};
        for (int i = 0; i < 5; i++) {
            times[one.script.prompts[5 * pass + i][0] - 100]++;
            moved = moved || one.script.prompts[5 * pass + i] != one.script.prompts[i];
        }
        for (int i = 0; i < 5; i++) {
            assert_int_equal(times[i], 1);
        }
    }
    assert_true(moved); /* The order is different each time. */
    for (int i = 0; i < 20; i++) {
        for (int k = 0; k < i; k++) {
            assert_true(one.script.seeds[i] != one.script.seeds[k]);
        }
    }
    o.ranks = 2;
    for (int rank = 0; rank < 2; rank++) {
        o.rank = rank;
        bench_open(&two[rank], &o, 5, "length", lengths, 2);
        draw_times(&two[rank], 5);
        for (int i = 0; i < 10; i++) {
            assert_int_equal(two[rank].script.prompts[i][0], one.script.prompts[2 * i + rank][0]);
            assert_true(two[rank].script.seeds[i] == one.script.seeds[2 * i + rank]);
        }
        bench_close(&two[rank]);
    }
    bench_close(&one);
    o = options();
    o.seed = 12;
    bench_open(&two[0], &o, 5, "length", lengths, 2);
    draw_times(&two[0], 1);
    assert_true(two[0].script.seeds[0] != one.script.seeds[0]);
    bench_close(&two[0]);
}

/* ---- The results of a draw ---- */

/* Lengths 4 and 8, 6 and 6: rewards 0.2 and 0.4, 0.3 and 0.3. GRPO: the mean is 0.3, the standard
 * deviation sqrt((0.01 + 0.01) / 1); TRL adds 1e-4. */
static void a_draw_is_worked_out(void **state) {
    static const int64_t lengths[] = {4, 8, 6, 6};
    const double a = 0.1 / (sqrt(0.02) + 1e-4);
    const double want[4][2] = {{0.2, -a}, {0.4, a}, {0.3, 0}, {0.3, 0}};
    const lt_reinforce_options o = options();
    static bench b;
    (void)state;
    bench_open(&b, &o, 2, "length", lengths, 4);
    draw_times(&b, 2); /* The second draw replaces the first. */
    assert_int_equal(b.script.group, 2);
    assert_false(b.script.greedy);
    for (int64_t i = 0; i < 4; i++) {
        const lt_drawn *d = lt_reinforce_answer(&b.r, i);
        close_to(d->reward, want[i][0]);
        close_to(d->advantage, want[i][1]);
        assert_int_equal(d->answer.n, lengths[i]);
        assert_true(d->answer.ended);
        assert_true(d->problem->prompt == b.script.prompts[2 + i / 2]);
        assert_memory_equal(d->answer.ids, b.script.ids[i], 4 * sizeof *d->answer.ids);
        assert_memory_equal(d->answer.logp, b.script.logp[i], 4 * sizeof *d->answer.logp);
        assert_true(d->text != NULL && d->old == NULL && d->ref == NULL);
    }
    close_to(b.r.draw.answers, 4);
    close_to(b.r.draw.groups, 2);
    close_to(b.r.draw.reward, 1.2);
    close_to(b.r.draw.reward_sq, 0.04 + 0.16 + 0.09 + 0.09);
    close_to(b.r.draw.equal, 1);
    close_to(b.r.draw.tokens, 24);
    close_to(b.r.draw.ended, 4);
    close_to(b.r.draw.refresh_s, 0.25);
    close_to(b.r.draw.draw_s, 0.5);
    assert_true(b.r.draw.judge_s > 0.0 && b.r.draw.judge_s < 60.0);
    bench_close(&b);
}

/* The parts of a sum are means over the answers: lengths 3, 6, 5, 4 have a mean of 0.225, and
 * half of them ended. */
static void parts_are_means(void **state) {
    static const int64_t lengths[] = {3, 6, 5, 4};
    const lt_reinforce_options o = options();
    static bench b;
    (void)state;
    bench_open(&b, &o, 2, "ended:3,length", lengths, 4);
    draw_times(&b, 2);
    close_to(b.r.parts[0], 0.5);
    close_to(b.r.parts[1], 0.225);
    close_to(lt_reinforce_answer(&b.r, 1)->reward, 3.3);
    close_to(b.r.draw.ended, 2);
    bench_close(&b);
}

/* Groups with equal rewards are drawn again, at most `resample` times, and the last round is
 * kept. Lengths of groups in the order in which they are drawn, and of those that are kept. */
static void equal_groups_are_drawn_again(void **state) {
    static const struct {
        int64_t resample, lengths[10], n, kept[4];
        double groups, equal;
    } rows[] = {
        {0, {4, 4, 6, 6}, 4, {4, 4, 6, 6}, 2, 2},
        {1, {4, 4, 6, 8}, 4, {6, 8, 4, 4}, 3, 2}, /* The script begins again: 4, 4. */
        {1, {4, 4, 6, 8, 2, 8}, 6, {6, 8, 2, 8}, 3, 1},
        {2, {4, 4, 6, 8, 2, 2, 4, 8}, 8, {6, 8, 4, 8}, 4, 2},
        {2, {4, 4, 6, 8, 2, 2, 8, 8}, 8, {6, 8, 8, 8}, 4, 3},
        {5, {4, 8, 6, 8}, 4, {4, 8, 6, 8}, 2, 0},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_reinforce_options o = options();
        static bench b;
        o.resample = rows[i].resample;
        bench_open(&b, &o, 5, "length", rows[i].lengths, rows[i].n);
        must(lt_reinforce_draw(&b.r));
        for (int64_t k = 0; k < 4; k++) {
            assert_int_equal(lt_reinforce_answer(&b.r, k)->answer.n, rows[i].kept[k]);
        }
        close_to(b.r.draw.groups, rows[i].groups);
        close_to(b.r.draw.equal, rows[i].equal);
        close_to(b.r.draw.answers, 2 * rows[i].groups);
        assert_int_equal(b.r.asked, (int64_t)rows[i].groups);
        assert_int_equal(b.script.calls[0], 2);
        bench_close(&b);
    }
}

/* Times of a draw are sums over its rounds. */
static void times_add_up(void **state) {
    static const int64_t lengths[] = {4, 4, 6, 8, 2, 8};
    lt_reinforce_options o = options();
    static bench b;
    (void)state;
    o.resample = 3;
    bench_open(&b, &o, 5, "length", lengths, 6);
    must(lt_reinforce_draw(&b.r));
    assert_int_equal(b.script.n_calls, 2);
    close_to(b.r.draw.refresh_s, 0.5);
    close_to(b.r.draw.draw_s, 1.0);
    bench_close(&b);
}

/* Of the first `most` problems, each rank answers every `ranks`-th, as many at once as a draw has
 * questions; the answers are greedy, one each, and the run continues as if nothing had been
 * asked. */
static void evaluation_shares_the_problems(void **state) {
    static const struct {
        int64_t problems, most, ranks, rank, want[8], n, calls[4];
    } rows[] = {
        {7, 5, 1, 0, {0, 1, 2, 3, 4}, 5, {2, 2, 1}},
        {7, 5, 2, 0, {0, 2, 4}, 3, {2, 1}},
        {7, 5, 2, 1, {1, 3}, 2, {2}},
        {3, 100, 1, 0, {0, 1, 2}, 3, {2, 1}},
        {3, 3, 4, 3, {0}, 0, {0}}, /* More ranks than problems. */
    };
    static const int64_t lengths[] = {4, 8, 5};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_reinforce_options o = options();
        static bench b;
        lt_draw_stats got;
        o.ranks = rows[i].ranks;
        o.rank = rows[i].rank;
        bench_open(&b, &o, rows[i].problems, "length", lengths, 3);
        must(lt_reinforce_evaluate(&b.r, &b.asked.all, rows[i].most, &got));
        assert_int_equal(b.script.n_asked, rows[i].n);
        for (int64_t k = 0; k < rows[i].n; k++) {
            assert_int_equal(b.script.prompts[k][0], 100 + rows[i].want[k]);
            assert_true(b.script.seeds[k] == 0);
        }
        for (int64_t k = 0; k < 4; k++) {
            assert_int_equal(b.script.calls[k], rows[i].calls[k]);
        }
        if (rows[i].n > 0) {
            assert_true(b.script.greedy && b.script.group == 1);
        }
        close_to(got.answers, (double)rows[i].n);
        if (rows[i].n == 3) {
            close_to(got.reward, 17.0 / LIMIT);
            close_to(got.ended, 2);
        }
        assert_true(b.r.asked == 0 && b.r.draw.answers == 0.0);
        b.script.fails = LT_ERR_IO;
        assert_int_equal(lt_reinforce_evaluate(&b.r, &b.asked.all, rows[i].most, &got),
                         rows[i].n > 0 ? LT_ERR_IO : LT_OK);
        bench_close(&b);
    }
}

/* ---- Steps ---- */

/* Two updates of four answers and three passes: the whole draw is used three times. */
static void steps_use_the_whole_draw(void **state) {
    static const int64_t lengths[] = {1, 2, 3, 4, 5, 6, 7, 8}, first[] = {1, 5, 1, 5, 1, 5};
    lt_reinforce_options o = options();
    static bench b;
    (void)state;
    o.updates = 2;
    o.passes = 3;
    bench_open(&b, &o, 5, "length", lengths, 8);
    must(lt_reinforce_draw(&b.r));
    assert_int_equal(lt_reinforce_steps_a_draw(&b.r), 6);
    for (int step = 0; step < 6; step++) {
        assert_true(lt_reinforce_draws_next(&b.r) == (step == 0));
        for (int64_t i = 0; i < 4; i++) {
            assert_int_equal(lt_reinforce_answer(&b.r, i)->answer.n, first[step] + i);
        }
        assert_int_equal(lt_reinforce_tokens(&b.r), 4 * first[step] + 6);
        lt_reinforce_end(&b.r);
    }
    assert_true(lt_reinforce_draws_next(&b.r));
    bench_close(&b);
}

/* With drop_cut, answers of an odd length, which reached the limit, have no effect. */
static void cut_answers_are_dropped(void **state) {
    static const int64_t lengths[] = {1, 2, 3, 8};
    static const float logp[12] = {-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    lt_reinforce_options o = options();
    static bench b;
    (void)state;
    o.drop_cut = true;
    bench_open(&b, &o, 5, "length", lengths, 4);
    must(lt_reinforce_draw(&b.r));
    assert_int_equal(lt_reinforce_tokens(&b.r), 10);
    b.r.step = (lt_align_step){.completions = 4, .tokens = 10};
    for (int64_t i = 0; i < 4; i++) {
        lt_drawn *d = lt_reinforce_answer(&b.r, i);
        lt_learn_stats stats = {.policy = {0}};
        float slopes[12] = {0};
        double loss = 0.0;
        must(lt_reinforce_loss(&b.r, d, logp, slopes, &loss, &stats));
        const int64_t n = i % 2 == 0 ? 0 : d->answer.n;
        assert_int_equal(stats.policy.tokens, n);
        close_to(stats.entropy_sum, (double)n);
        for (int64_t t = 0; t < 12; t++) {
            assert_true((slopes[t] != 0.0f) == (t >= PROMPT - 1 && t < PROMPT - 1 + n));
        }
    }
    bench_close(&b);
}

/* A row by hand: position t predicts token t + 1. */
static void rows_are_laid_out(void **state) {
    static const int32_t want[2][3][6] = {
        {{7, 8, 9, 4, 5, 0}, {-1, -1, 4, 5, -1, -1}, {0, 1, 2, 3, 4, 5}},
        {{7, 8, 9, 4, 5, 6}, {-1, -1, 4, 5, 6, 3}, {0, 1, 2, 3, 4, 5}}, /* Exactly full. */
    };
    int32_t prompt[] = {7, 8, 9}, ids[] = {4, 5, 6, 3}, at[4][12];
    const lt_problem p = {.prompt = prompt, .n_prompt = 3};
    const lt_batch batch = {
        .tokens = at[0], .labels = at[1], .positions = at[2], .doc_start = at[3], .seq = 6};
    (void)state;
    memset(at, 0x55, sizeof at);
    for (int64_t row = 0; row < 2; row++) {
        const lt_drawn d = {.problem = &p, .answer = {.ids = ids, .n = 2 + 2 * row}};
        lt_reinforce_row(&d, &batch, row);
    }
    for (int row = 0; row < 2; row++) {
        for (int k = 0; k < 3; k++) {
            assert_memory_equal(&at[k][6 * row], want[row][k], sizeof want[row][k]);
        }
        for (int i = 0; i < 6; i++) {
            assert_int_equal(at[3][6 * row + i], 0);
        }
    }
}

/* ---- Losses ---- */

/* One answer of two tokens after a prompt of three: values of a row are at positions 2 and 3. The
 * step has 5 completions. */
typedef struct {
    int32_t prompt[3], ids[2];
    float sampled[2];
    lt_problem problem;
    lt_drawn d;
    lt_reinforce r;
} single;

static void single_open(single *s, double advantage) {
    *s = (single){.prompt = {7, 8, 9}, .ids = {4, 5}, .sampled = {-1.0f, -2.0f}};
    s->problem = (lt_problem){.prompt = s->prompt, .n_prompt = 3};
    s->d = (lt_drawn){.problem = &s->problem,
                      .answer = {.ids = s->ids, .logp = s->sampled, .n = 2, .ended = true},
                      .advantage = advantage};
    s->r.o = options();
    s->r.o.policy = (lt_align_policy_options){.low = 0.2, .high = 0.2};
    s->r.step = (lt_align_step){.completions = 5, .tokens = 10};
}

static void single_close(single *s) {
    free(s->d.old);
    free(s->d.ref);
}

/* On policy the ratio is 1: GRPO's loss is -A / N, each derivative -A / (N n). */
static void on_policy_losses(void **state) {
    static const float logp[6] = {-9, -9, -1.25f, -1.5f, -9, -9};
    lt_learn_stats stats = {.mismatch_most = 0.125};
    float slopes[6] = {0};
    double loss = 0.5;
    single s;
    (void)state;
    single_open(&s, 3.0);
    must(lt_reinforce_loss(&s.r, &s.d, logp, NULL, &loss, &stats));
    close_to(loss, 0.5 - 3.0 / 5);
    assert_true(stats.entropy_sum == 0.0 && stats.policy.tokens == 0 &&
                stats.mismatch_most == 0.125);
    must(lt_reinforce_loss(&s.r, &s.d, logp, slopes, &loss, &stats));
    close_to(loss, 0.5 - 6.0 / 5);
    for (int i = 0; i < 6; i++) {
        assert_true(slopes[i] == (i == 2 || i == 3 ? -0.3f : 0.0f));
    }
    close_to(stats.entropy_sum, 2.75);
    close_to(stats.mismatch_most, 0.5); /* |-1.5 + 2|, which is more than |-1.25 + 1|. */
    assert_int_equal(stats.policy.tokens, 2);
    single_close(&s);
}

/* Off policy, with a reference and a sampler: r = exp(logp - old), w = exp(old - sampler) limited
 * to 1.25, k3 = exp(-x) - 1 + x for x = logp - ref, weight 0.1. */
static void off_policy_losses(void **state) {
    static const float old[6] = {-9, -9, -1.0f, -1.5f, -9, -9},
                       ref[6] = {-9, -9, -1.5f, 0.25f, -9, -9},
                       logp[6] = {-9, -9, -0.875f, -1.75f, -9, -9};
    /* w: exp(0.5) = 1.65 is clipped. x: a logarithm above 0 counts as 0. */
    const double r[] = {exp(0.125), exp(-0.25)}, w[] = {1.0, 1.25}, x[] = {0.625, -1.75};
    lt_learn_stats stats = {.mismatch_most = 0.0};
    float slopes[6] = {0};
    double loss = 0.0, want = 0.0;
    single s;
    (void)state;
    single_open(&s, 2.0);
    s.r.o.policy.low = s.r.o.policy.high = 0.5;
    s.r.o.policy.kl = 0.1;
    s.r.o.policy.kl_kind = LT_ALIGN_K3;
    s.r.o.policy.correction = LT_ALIGN_TOKEN_TRUNCATE;
    s.r.o.policy.weight_high = 1.25;
    s.r.draw.mismatch_most = 0.25;
    must(lt_reinforce_keep_old(&s.r, &s.d, old));
    must(lt_reinforce_keep_old(&s.r, &s.d, old)); /* Replaces the earlier one. */
    must(lt_reinforce_keep_ref(&s.d, ref));
    close_to(s.r.draw.mismatch_most, 0.5); /* -1.5 against the sampler's -2. */
    must(lt_reinforce_loss(&s.r, &s.d, logp, slopes, &loss, &stats));
    for (int t = 0; t < 2; t++) {
        want += (-w[t] * r[t] * 2.0 + 0.1 * (exp(-x[t]) - 1 + x[t])) / (5 * 2);
        const double slope = (-w[t] * r[t] * 2.0 + 0.1 * (1 - exp(-x[t]))) / (5 * 2);
        assert_true(fabs((double)slopes[2 + t] - slope) < 1e-7);
    }
    close_to(loss, want);
    assert_true(stats.mismatch_most == 0.0); /* These weights did not draw the answers. */
    single_close(&s);
}

/* ---- A curriculum ---- */

/* Two ranks choose the same problems, and each asks every second of them; the numbers of passed
 * answers are assigned to the questions that were asked. Groups of 2 whose answers pass from 6
 * tokens on. */
static void a_curriculum_is_shared(void **state) {
    static const int64_t lengths[] = {4, 6, 8, 8};
    static bench b[2];
    lt_curriculum c[2];
    const lt_curriculum_options how = {
        .member = "", .start = 1.0, .steps = 1, .prefer = LT_PREFER_FAILED, .pass = 0.3, .seed = 5};
    (void)state;
    for (int rank = 0; rank < 2; rank++) {
        lt_reinforce_options o = options();
        o.ranks = 2;
        o.rank = rank;
        bench_open(&b[rank], &o, 8, "length", lengths, 4);
        must(lt_curriculum_open(&c[rank], &how, &b[rank].asked.all));
        b[rank].r.curriculum = &c[rank];
        draw_times(&b[rank], 2);
        assert_int_equal(b[rank].r.chosen.n, 4);
        for (int i = 0; i < 2; i++) {
            assert_int_equal(b[rank].script.prompts[2 + i][0] - 100,
                             b[rank].r.chosen.problems[2 * i + rank]);
            close_to(b[rank].r.chosen.passed[2 * i + rank], 1.0 + i);
            close_to(b[rank].r.chosen.passed[2 * i + 1 - rank], 0.0);
        }
    }
    assert_memory_equal(b[0].r.chosen.problems, b[1].r.chosen.problems, 4 * sizeof(int64_t));
    for (int i = 0; i < 4; i++) { /* The sum over the ranks. */
        b[0].r.chosen.passed[i] += b[1].r.chosen.passed[i];
    }
    lt_reinforce_learn_rates(&b[0].r);
    for (int i = 0; i < 4; i++) { /* (passed + 1) / (answers + 2). */
        close_to(lt_curriculum_rate(&c[0], b[0].r.chosen.problems[i]), (i < 2 ? 2.0 : 3.0) / 4);
        close_to(lt_curriculum_rate(&c[1], b[0].r.chosen.problems[i]), 0.5);
    }
    for (int rank = 0; rank < 2; rank++) {
        lt_curriculum_close(&c[rank]);
        bench_close(&b[rank]);
    }
}

/* Groups that are drawn again are further choices of the same draw. */
static void a_curriculum_counts_all_rounds(void **state) {
    static const int64_t lengths[] = {4, 4, 4, 8, 8, 8, 2, 8};
    static const double passed[] = {0, 1, 2, 1};
    const lt_curriculum_options how = {
        .member = "", .start = 1.0, .steps = 1, .prefer = LT_PREFER_FAILED, .pass = 0.4, .seed = 5};
    lt_reinforce_options o = options();
    static bench b;
    lt_curriculum c;
    (void)state;
    o.resample = 4;
    bench_open(&b, &o, 8, "length", lengths, 8);
    must(lt_curriculum_open(&c, &how, &b.asked.all));
    b.r.curriculum = &c;
    must(lt_reinforce_draw(&b.r));
    assert_int_equal(b.r.chosen.n, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(b.script.prompts[i][0] - 100, b.r.chosen.problems[i]);
        close_to(b.r.chosen.passed[i], passed[i]);
        for (int k = 0; k < i; k++) {
            assert_true(b.r.chosen.problems[i] != b.r.chosen.problems[k]);
        }
    }
    lt_curriculum_close(&c);
    bench_close(&b);
}

/* ---- Drawn ahead ---- */

/* A learner that draws ahead asks and answers the same as one that does not. A draw that failed
 * fails when it is used. */
static void drawing_ahead_asks_the_same(void **state) {
    static const int64_t lengths[] = {4, 8, 5, 3, 2, 7};
    const lt_reinforce_options o = options();
    static bench plain, b;
    lt_ahead ahead = {.serial = true};
    (void)state;
    bench_open(&plain, &o, 5, "length", lengths, 6);
    bench_open(&b, &o, 5, "length", lengths, 6);
    must(lt_ahead_open(&ahead, &b.r, 1));
    must(lt_reinforce_draw(&b.r));
    draw_times(&plain, 2);
    b.r.done = 6;
    for (int i = 0; i < 2; i++) {
        ahead.serial = i == 0;
        must(lt_ahead_begin(&ahead, &b.r));
        assert_true(ahead.pending && ahead.r.done == 7);
        must(lt_ahead_take(&ahead, &b.r));
        assert_false(ahead.pending || ahead.running);
        assert_int_equal(b.r.asked, 4 + 2 * i);
        assert_int_equal(b.r.done, 6);
        for (int64_t k = 0; i == 0 && k < 4; k++) {
            const lt_drawn *x = lt_reinforce_answer(&b.r, k), *y = lt_reinforce_answer(&plain.r, k);
            assert_int_equal(x->answer.n, y->answer.n);
            assert_int_equal(x->problem->prompt[0], y->problem->prompt[0]);
            close_to(x->advantage, y->advantage);
        }
        close_to(b.r.draw.tokens, i == 0 ? 21 : 17); /* 2 7 4 8, then 5 3 2 7. */
        close_to(b.r.parts[0], b.r.draw.reward / 4);
    }
    b.script.fails = LT_ERR_IO;
    for (int i = 0; i < 2; i++) {
        ahead.serial = i == 0;
        must(lt_ahead_begin(&ahead, &b.r));
        assert_int_equal(lt_ahead_take(&ahead, &b.r), LT_ERR_IO);
        assert_false(ahead.pending);
    }
    lt_ahead_close(&ahead);
    bench_close(&plain);
    bench_close(&b);
}

static void bad_options(void **state) {
    static const struct {
        int64_t group, answers;
        bool good;
    } rows[] = {{1, 4, false},     {2, 1, false}, {2, 3, false},   {4, 2, false},
                {513, 513, false}, {2, 2, true},  {512, 512, true}};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        lt_reinforce_options o = options();
        const lt_reward_options how = {
            .sum = "length", .command = "", .max_tokens = LIMIT, .tokenizer = tokenizer};
        lt_rewards *rewards = NULL;
        asked_of p;
        lt_reinforce r;
        o.group = rows[i].group;
        o.answers = rows[i].answers;
        ask_of(&p, 2);
        must(lt_rewards_open(&rewards, &how));
        assert_int_equal(lt_reinforce_open(&r, &o, &p.all, rewards, &(lt_answerer){NULL, answer}),
                         rows[i].good ? LT_OK : LT_ERR_ARG);
        lt_reinforce_close(&r);
        lt_rewards_close(rewards);
    }
}

static int open_tokenizer(void **state) {
    (void)state;
    return lt_tokenizer_open(&tokenizer, "tests/golden/sft", NULL) == LT_OK ? 0 : -1;
}

static int close_tokenizer(void **state) {
    (void)state;
    lt_tokenizer_close(tokenizer);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(questions_are_permutations),
        cmocka_unit_test(a_draw_is_worked_out),
        cmocka_unit_test(parts_are_means),
        cmocka_unit_test(equal_groups_are_drawn_again),
        cmocka_unit_test(times_add_up),
        cmocka_unit_test(evaluation_shares_the_problems),
        cmocka_unit_test(steps_use_the_whole_draw),
        cmocka_unit_test(cut_answers_are_dropped),
        cmocka_unit_test(rows_are_laid_out),
        cmocka_unit_test(on_policy_losses),
        cmocka_unit_test(off_policy_losses),
        cmocka_unit_test(a_curriculum_is_shared),
        cmocka_unit_test(a_curriculum_counts_all_rounds),
        cmocka_unit_test(drawing_ahead_asks_the_same),
        cmocka_unit_test(bad_options),
    };
    return cmocka_run_group_tests(tests, open_tokenizer, close_tokenizer);
}
