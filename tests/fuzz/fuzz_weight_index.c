/* Fuzz target: model.safetensors.index.json beside a config.json and one good shard. */
#include <string.h>

#include "fuzz_file.h"
#include "model/files/source.h"

static const char config[] = "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_embd\":8,\"n_head\":2,"
                             "\"vocab_size\":16,\"n_positions\":8}";
static const char shard[] = "\x40\0\0\0\0\0\0\0{\"wte.weight\":{\"dtype\":\"U8\",\"shape\":[4],"
                            "\"data_offsets\":[0,4]}}  \1\2\3\4";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static int index = -1;
    lt_source s;
    lt_model_spec spec;
    if (index < 0) {
        fuzz_write(fuzz_folder_file("config.json"), config, sizeof config - 1);
        fuzz_write(fuzz_folder_file("a.safetensors"), shard, sizeof shard - 1);
        index = fuzz_folder_file("model.safetensors.index.json");
    }
    fuzz_write(index, data, size);
    if (lt_weight_source_open(&s, &spec, fuzz_folder()) == LT_OK) {
        lt_weight_source_close(&s);
    }
    return 0;
}
