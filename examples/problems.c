/* problems.c: problems made by procedure, and how an answer is marked.
 *
 *     build/examples/problems logic 7 */
#include <stdio.h>
#include <stdlib.h>

#include "lateen/make.h"

int main(int argc, char **argv) {
    lt_make_options o = {.kind = "all", .seed = 1, .level_min = 1, .level_max = LT_MAKE_LEVELS};
    lt_maker *maker = NULL;
    lt_made p;

    o.kind = argc > 1 ? argv[1] : o.kind;
    if (lt_maker_open(&maker, &o) != LT_OK ||
        lt_maker_problem(maker, argc > 2 ? strtoull(argv[2], NULL, 10) : 0, &p) != LT_OK) {
        (void)fprintf(stderr, "problems: %s\n", lt_error_message());
        return 1;
    }
    printf("%s\n%sThe answer is %s.\n", p.question, p.steps, p.answer);
    lt_maker_close(maker);
    return 0;
}
