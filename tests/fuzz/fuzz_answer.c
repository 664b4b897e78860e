/* Checkers of answers: the first byte chooses the kind, a line is the true answer, and the rest
 * is what a model wrote. Nothing may crash; a number equals itself, and equality is symmetric. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "data/check/checker.h"
#include "data/check/expression.h"

static void symmetric(const char *a, size_t n, const char *b, size_t m) {
    static lt_expression x, y;
    bool forth = false, back = false, self = false;
    if (!lt_expression_read(&x, a, n, NULL) || !lt_expression_read(&y, b, m, NULL)) {
        return;
    }
    if (lt_expression_equal(&forth, &x, &y) != LT_OK ||
        lt_expression_equal(&back, &y, &x) != LT_OK ||
        lt_expression_equal(&self, &x, &x) != LT_OK || forth != back || !self) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const char *gold = (const char *)data + 1, *nl;
    lt_checker *c = NULL;
    bool right = false;
    size_t n;
    if (size < 2) {
        return 0;
    }
    nl = memchr(gold, '\n', size - 1);
    n = nl != NULL ? (size_t)(nl - gold) : size - 1;
    const char *text = nl != NULL ? nl + 1 : gold;
    const size_t m = nl != NULL ? size - 2 - n : size - 1;
    if (lt_checker_open(&c, (lt_check_kind)(data[0] % LT_CHECK_COUNT), gold, n) == LT_OK) {
        lt_answer_mark mark;
        if (lt_checker_run(c, text, m,
                           data[0] / LT_CHECK_COUNT % 2 == 0 ? LT_ANSWER_LENIENT
                                                             : LT_ANSWER_LAST_NUMBER,
                           &right, &mark) != LT_OK ||
            (right && mark == LT_ANSWER_NONE)) {
            abort();
        }
        lt_checker_close(c);
    }
    symmetric(gold, n, text, m);
    return 0;
}
