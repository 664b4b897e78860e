/* tokenizer/ends.c: finds the tokens that end a text or a turn, as far as the tokenizer's own
 * file shows.
 *
 * They are eos and eot, those of a GGUF's further keys, and special tokens with certain names,
 * because files often name only one of the tokens at which a model was trained to stop. The names
 * are llama.cpp's, so that generation stops where it does there; for a GGUF they include those of
 * fill-in-the-middle, at which llama.cpp stops. llama.cpp also makes these two exceptions: if
 * there are <|return|> and <|call|> (or channels at all), <|end|> ends a message but not the text
 * (gpt-oss); if there is <|tool_response>, </s> is an ordinary token (Gemma 4). */
#include <string.h>

#include "base/error.h"
#include "data/tokenizer/impl.h"

static const char *const names[] = {"<|eot_id|>",
                                    "<|im_end|>",
                                    "<|end|>",
                                    "<|return|>",
                                    "<|call|>",
                                    "<|flush|>",
                                    "<|calls|>",
                                    "<end_of_turn>",
                                    "<|endoftext|>",
                                    "</s>",
                                    "<|eom_id|>",
                                    "<EOT>",
                                    "_<EOT>",
                                    "[EOT]",
                                    "[EOS]",
                                    "<|end_of_text|>",
                                    "<end_of_utterance>",
                                    "<eos>",
                                    "<turn|>",
                                    "<|tool_response>",
                                    "<\xEF\xBD\x9C"
                                    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
                                    "[e~[",
                                    NULL};

/* Padding, the name of a repository, the separator of files. */
static const char *const fill_names[] = {
    "<|fim_pad|>",   "<fim-pad>",  "<fim_pad>", "<PAD>",      "[PAD]",        "<|fim_repo|>",
    "<|repo_name|>", "<fim-repo>", "<REPO>",    "<reponame>", "<|file_sep|>", NULL};

static uint32_t find(const lt_tokenizer *t, const char *name) {
    const uint32_t id = lt_tokenizer_find(t, name, strlen(name));
    return id != LT_NO_ID && lt_tokenizer_is_special(t, id) ? id : LT_NO_ID;
}

static lt_err add(lt_tokenizer *t, uint32_t id) {
    for (size_t i = 0; i < t->ends.n; i++) {
        if (t->ends.data[i] == id) {
            return LT_OK;
        }
    }
    if (id == LT_NO_ID) {
        return LT_OK;
    }
    return lt_ids_append(&t->ends, &id, 1);
}

static lt_err add_names(lt_tokenizer *t, const char *const *list) {
    for (; *list != NULL; list++) {
        LT_TRY(add(t, find(t, *list)));
    }
    return LT_OK;
}

static void drop(lt_tokenizer *t, uint32_t id) {
    size_t n = 0;
    for (size_t i = 0; i < t->ends.n; i++) {
        if (t->ends.data[i] != id) {
            t->ends.data[n++] = t->ends.data[i];
        }
    }
    t->ends.n = n;
}

lt_err lt_tokenizer_find_ends(lt_tokenizer *t) {
    const bool calls = find(t, "<|call|>") != LT_NO_ID || find(t, "<|calls|>") != LT_NO_ID;
    const bool returns = find(t, "<|return|>") != LT_NO_ID || find(t, "<|flush|>") != LT_NO_ID;
    const uint32_t message = find(t, "<|end|>"), plain = find(t, "</s>");

    LT_TRY(add(t, t->eos));
    LT_TRY(add(t, t->eot));
    LT_TRY(add_names(t, names));
    if (t->from_gguf) {
        LT_TRY(add_names(t, fill_names));
    }
    if (((calls && returns) || find(t, "<|channel|>") != LT_NO_ID) && message != LT_NO_ID) {
        drop(t, message);
    }
    if (find(t, "<|tool_response>") != LT_NO_ID && plain != LT_NO_ID) {
        drop(t, plain);
    }
    return LT_OK;
}
