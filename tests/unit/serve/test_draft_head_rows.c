/* Which token, hidden state and place for its keys each row of a draft head gets, and which rows
 * count as run: tables from the header of serve/step_draft_head.c, on pages of 4 tokens. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "serve/engine_impl.h"

enum { SIZE = 4, ROWS = 32, PAGES = 4, TOKENS = 16 };

/* Token i of a text is 100 + i; its positions 0 to 3 are in page 0, later ones in page 2. */
typedef struct {
    lt_engine *e;
    lt_page pages[PAGES];
    int32_t ids[ROWS], slots[ROWS], hidden[ROWS], first_slots[ROWS];
} bench;

typedef struct {
    int32_t tokens[TOKENS], table[2];
    lt_job_choice *choice;
    lt_seq seq;
} text;

static void open_bench(bench *b, int64_t n_layers, int32_t refs) {
    memset(b, 0, sizeof *b);
    b->e = calloc(1, sizeof *b->e);
    assert_non_null(b->e);
    b->e->o.page_tokens = SIZE;
    b->e->sched.pages.page = b->pages;
    b->e->drafter.n_layers = n_layers;
    b->e->drafter.rows.ids = b->ids;
    b->e->drafter.rows.slots = b->slots;
    b->e->drafter.hidden = b->hidden;
    b->e->drafter.first_slots = b->first_slots;
    for (int i = 0; i < ROWS; i++) {
        b->slots[i] = b->hidden[i] = b->first_slots[i] = -77;
    }
    for (int i = 0; i < PAGES; i++) {
        b->pages[i].refs = i == 0 ? refs : 1;
    }
}

static void open_text(text *t, int64_t n_tokens, int64_t n_draft) {
    memset(t, 0, sizeof *t);
    for (int32_t i = 0; i < TOKENS; i++) {
        t->tokens[i] = 100 + i;
    }
    t->table[1] = 2;
    t->choice = calloc(1, sizeof *t->choice);
    assert_non_null(t->choice);
    t->seq = (lt_seq){.tokens = t->tokens,
                      .n_tokens = n_tokens,
                      .n_draft = n_draft,
                      .table = t->table,
                      .owner = t->choice};
}

static void expect(const int32_t *got, const int32_t *want, int n, const char *what) {
    for (int i = 0; i < n; i++) {
        if (got[i] != want[i]) {
            fail_msg("%s %d: %d, not %d", what, i, got[i], want[i]);
        }
    }
}

/* A head with one layer: each row except that of the last token counts as run, and is not run
 * again. */
static void one_layer(void **state) {
    static const int32_t ids[] = {101, 102, 103, 104, 105}, places[] = {0, 1, 2, 3, 8},
                         again[] = {-1, -1, -1, -1, -1};
    bench b;
    text t;
    (void)state;
    open_bench(&b, 1, 1);
    open_text(&t, 6, 0);
    lt_step_head_rows(b.e, &t.seq, 0, 5, 0, 5);
    expect(b.ids + 5, ids, 5, "token");
    expect(b.hidden + 5, places, 5, "hidden state"); /* That of the served model, in its pages. */
    expect(b.slots + 5, places, 5, "place");
    assert_int_equal(b.pages[0].n_drafted, 4);
    assert_int_equal(b.pages[2].n_drafted, 1);
    assert_int_equal(b.slots[4], -77);
    assert_int_equal(b.slots[10], -77);
    lt_step_head_rows(b.e, &t.seq, 0, 5, 0, 5);
    expect(b.slots + 5, again, 5, "place");
    free(t.choice);
    free(b.e);
}

/* Three layers, by the table in the header: rows a to c count as run, d and e read draft tokens
 * in later layers and do not, so the next first call begins with them. */
static void three_layers(void **state) {
    static const int32_t first[] = {0, 1, 2, 3, 8}, second[] = {102, 103, 104, 105, 106},
                         before[] = {-6, -7, -8, -9, -10}, next[] = {3, 8, 9};
    bench b;
    text t;
    (void)state;
    open_bench(&b, 3, 1);
    open_text(&t, 6, 3);
    lt_step_head_rows(b.e, &t.seq, 0, 5, 0, 5);
    expect(b.slots + 5, first, 5, "place");
    assert_int_equal(b.pages[0].n_drafted, 3);
    assert_int_equal(b.pages[2].n_drafted, 0);
    /* Layer 1 reads the token one further on, and the output of the same rows in the previous
     * call. */
    lt_step_head_rows(b.e, &t.seq, 1, 2, 0, 5);
    expect(b.ids + 2, second, 5, "token");
    expect(b.hidden + 2, before, 5, "hidden state");
    expect(b.slots + 2, first, 5, "place");
    lt_step_head_rows(b.e, &t.seq, 2, 0, 0, 5);
    expect(b.slots, first, 5, "place");
    /* After the last layer: the last one again, for the next row, from the row before it. */
    lt_step_head_rows(b.e, &t.seq, 3, 7, 5, 1);
    assert_int_equal(b.ids[7], 108);
    assert_int_equal(b.hidden[7], -1 - 4);
    assert_int_equal(b.slots[7], 9);
    /* The next step, with one token more. */
    t.seq.n_tokens = 7;
    t.seq.n_draft = 0;
    lt_step_head_rows(b.e, &t.seq, 0, 0, 3, 3);
    expect(b.slots, next, 3, "place");
    assert_int_equal(b.pages[0].n_drafted, 4);
    assert_int_equal(b.pages[2].n_drafted, 0);
    free(t.choice);
    free(b.e);
}

/* Two texts of five tokens share page 0. Rows of the second text that count are those of the
 * first one, and those that do not are the first one's in this call. A longer text keeps its own
 * permanently. */
static void shared_pages(void **state) {
    static const int32_t first[] = {0, 1, 2, 3}, none[] = {-1, -1, -1, -1};
    bench b;
    text one, other, longer;
    (void)state;
    open_bench(&b, 3, 2);
    open_text(&one, 5, 0);
    open_text(&other, 5, 0);
    lt_step_head_rows(b.e, &one.seq, 0, 0, 0, 4);
    lt_step_head_rows(b.e, &other.seq, 0, 4, 0, 4);
    expect(b.slots, first, 4, "place of the first");
    expect(b.slots + 4, none, 4, "place of the second");
    assert_int_equal(b.pages[0].n_drafted, 2);
    /* In another call, what does not count is written by the first one that comes. */
    lt_step_head_rows(b.e, &other.seq, 0, 0, 2, 2);
    expect(b.slots, first + 2, 2, "place in another call");
    open_text(&longer, 9, 0);
    lt_step_head_rows(b.e, &longer.seq, 0, 0, 2, 2);
    expect(b.slots, first + 2, 2, "place of a longer text");
    assert_int_equal(b.pages[0].n_drafted, 4);
    lt_step_head_rows(b.e, &one.seq, 0, 8, 2, 2);
    expect(b.slots + 8, none, 2, "place behind a longer text");
    assert_int_equal(b.pages[0].n_drafted, 4);
    free(one.choice);
    free(other.choice);
    free(longer.choice);
    free(b.e);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_layer), cmocka_unit_test(three_layers),
                                       cmocka_unit_test(shared_pages)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
