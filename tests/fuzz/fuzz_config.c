/* Fuzz target: a config.json; a spec that is read must pass its own check, have a parameter
 * table, and survive being written. */
#include <stdlib.h>

#include "base/json.h"
#include "model/family.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    json_t *config = NULL;
    lt_model_spec spec;
    lt_param_table table;
    if (lt_json_parse(&config, (const char *)data, size, "fuzz") == LT_OK &&
        lt_config_read(&spec, config, "fuzz") == LT_OK) {
        if (lt_param_table_open(&table, &spec) != LT_OK || lt_model_spec_params(&spec) <= 0) {
            abort();
        }
        lt_param_table_close(&table);
    }
    json_decref(config);
    return 0;
}
