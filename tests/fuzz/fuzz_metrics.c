/* Fuzz target: metrics.jsonl as the report reads it: the data in the page are valid JSON whatever
 * the file contains. */
#include <jansson.h>

#include "fuzz_file.h"
#include "train/report/report.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int metrics = -1;
    char *text = NULL;
    json_t *root;
    if (metrics < 0) {
        fuzz_write(fuzz_folder_file("recipe.yaml"), "steps: 1\n", 9);
        metrics = fuzz_folder_file("metrics.jsonl");
    }
    fuzz_write(metrics, data, size);
    if (lt_report_data(&text, fuzz_folder(), 4) == LT_OK) {
        root = json_loads(text, 0, NULL);
        if (root == NULL) {
            abort();
        }
        json_decref(root);
        free(text);
    }
    return 0;
}
