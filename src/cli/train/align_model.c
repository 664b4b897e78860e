/* align_model.c: functions shared by the parts of `lateen align` that compute with a model. */
#include <inttypes.h>

#include "base/error.h"
#include "cli/train/align.h"

lt_err lt_align_check_model(const lt_model *m, const char *verb, int64_t seq) {
    const lt_model_spec *spec = lt_model_get_spec(m);
    LT_TRY(lt_model_spec_writes(spec, verb));
    if (seq > lt_model_spec_context(spec)) {
        LT_FAIL(LT_ERR_ARG, "--seq %" PRId64 " is longer than the model's %" PRId64 " positions",
                seq, lt_model_spec_context(spec));
    }
    return LT_OK;
}

lt_err lt_align_open_chat(lt_chat_source *out, const lt_opened *model, const char *tokenizer,
                          const char *template, bool last_only) {
    return lt_chat_source_open(
        out,
        &(lt_chat_source_options){.tokenizer = model->tokenizer,
                                  .tokenizer_path = tokenizer[0] != '\0' ? tokenizer : model->path,
                                  .template = template,
                                  .option = "--chat-template",
                                  .messages = "messages",
                                  .last_only = last_only});
}
