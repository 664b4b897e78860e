/* Fuzz target: a training recipe in YAML. If it is accepted, its dump must read back to the same
 * values; then its mixture and its model are requested. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_file.h"
#include "train/mixture.h"
#include "train/recipe/recipe.h"

static void dump(char text[1 << 16], const lt_recipe *r) {
    FILE *to = fmemopen(text, 1 << 16, "w");
    lt_options_dump_yaml(&lt_recipe_table, r, to);
    fclose(to);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_recipe r, again;
    static lt_mixture mixture;
    static char text[1 << 16], text_again[1 << 16];
    lt_model_spec spec;
    uint32_t hash = 0;

    lt_options_default(&lt_recipe_table, &r);
    snprintf(r.out, sizeof r.out, "runs/x"); /* These options may be absent but not empty. */
    snprintf(r.train, sizeof r.train, "x");
    if (lt_options_load_yaml(&lt_recipe_table, &r, fuzz_file(data, size)) != LT_OK ||
        lt_recipe_check(&r) != LT_OK) {
        return 0;
    }
    (void)!lt_mixture_parse(&mixture, r.train, "data.train");
    (void)!lt_recipe_spec(&spec, &r, 0, -1, -1, -1);
    for (int64_t step = 1; step < 5; step++) {
        (void)lt_recipe_lr(&r, step);
        (void)lt_recipe_batch(&r, (uint64_t)step * 100);
    }
    for (size_t i = 0; i < size; i++) {
        hash = hash * 31 + data[i];
    }
    if (hash % 16 != 0) { /* Only one in 16, because libyaml is slow. */
        return 0;
    }
    dump(text, &r);
    lt_options_default(&lt_recipe_table, &again);
    if (lt_options_load_yaml(&lt_recipe_table, &again,
                             fuzz_file((const uint8_t *)text, strlen(text))) != LT_OK) {
        fprintf(stderr, "%s\n%s", lt_error_message(), text);
        abort();
    }
    dump(text_again, &again);
    if (strcmp(text, text_again) != 0) {
        abort();
    }
    return 0;
}
