/* Fuzz target: a checkpoint's manifest.json, including the state of the loader and of the
 * guard. */
#include <stdlib.h>
#include <string.h>

#include "lateen/data.h"
#include "train/checkpoint/checkpoint.h"
#include "train/watch/guard.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static lt_recipe recipe;
    static lt_loader_state loader;
    static lt_guard guard;
    lt_run_state state = {0};
    char *text;

    if (recipe.steps == 0) {
        lt_options_default(&lt_recipe_table, &recipe);
    }
    if (lt_checkpoint_parse(&state, (const char *)data, size, "fuzz") == LT_OK) {
        text = json_dumps(state.loader, JSON_COMPACT);
        if (text != NULL) {
            (void)!lt_loader_state_parse(&loader, text, strlen(text));
        }
        free(text);
        lt_guard_open(&guard, &recipe);
        (void)!lt_guard_load(&guard, state.guard, "fuzz");
    }
    lt_run_state_clear(&state);
    return 0;
}
