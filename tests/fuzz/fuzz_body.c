/* JSON bodies are parsed, read by a table of every kind of field, and converted from the formats
 * that other vendors have for conversations. An error reply must be valid JSON, too. */
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "serve/api/api_params.h"
#include "serve/stop_scan.h"
#include "serve/api/formats/tools_convert.h"

static const lt_field fields[] = {LT_JSON("messages", messages),
                                  LT_JSON("system", system),
                                  LT_JSON("input", input),
                                  LT_JSON("tools", tools),
                                  LT_STR("instructions", instructions),
                                  LT_STR("model", model),
                                  LT_I64("n", n, 1, 128),
                                  LT_BOOL("stream", stream),
                                  LT_ONLY("store", "false"),
                                  LT_REFUSED("audio", "no"),
                                  LT_FIELDS_SAMPLING};

static void convert(const lt_api_params *a) {
    lt_api_error e = {0};
    const char *texts[LT_API_PARAMS_STOPS];
    size_t lengths[LT_API_PARAMS_STOPS];
    int n = 0;
    json_decref(lt_convert_anthropic("\n", a->system, a->messages, &e));
    json_decref(lt_convert_responses("\n", a->instructions, a->input, &e));
    json_decref(lt_convert_anthropic_tools(a->tools, &e));
    json_decref(lt_convert_responses_tools(a->tools, &e));
    (void)lt_api_params_strings(a->stop, "stop", texts, lengths, LT_API_PARAMS_STOPS, &n, &e);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    lt_api_error e = {0};
    lt_api_params a;
    char *text = malloc(size + 1); /* As the server's bodies, the text is 0-terminated. */
    LT_ASSERT(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    lt_api_params_defaults(&a);
    if (lt_api_params_read(&a, fields, sizeof fields / sizeof *fields, text, size, &e)) {
        convert(&a);
    } else {
        LT_ASSERT(e.status == 400 && e.message[0] != '\0');
    }
    lt_api_params_free(&a);
    free(text);
    return 0;
}
