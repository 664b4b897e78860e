/* Fuzz target: questions of the evaluation tasks; the first byte chooses the task. The answer of
 * each question that is read is among its choices. */
#include "fuzz_file.h"
#include "train/eval/eval_items.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const tasks[] = {"arc_easy", "openbookqa", "winogrande", "lambada"};
    lt_eval_items items = {0};
    lt_eval_metric metric;
    if (size == 0 || (size > 1 && (data[1] == 0x1F || data[1] == 0x28))) {
        /* fuzz_text tests gzip and zstd; setting their decoders up would take most of a run. */
        return 0;
    }
    if (lt_eval_items_read(&items, &metric, tasks[data[0] & 3], fuzz_file(data + 1, size - 1), 64,
                           0) == LT_OK) {
        for (int64_t i = 0; i < items.n; i++) {
            if (items.items[i].n_pairs == 0 || items.items[i].gold >= items.items[i].n_pairs) {
                abort();
            }
        }
    }
    lt_eval_items_free(&items);
    return 0;
}
