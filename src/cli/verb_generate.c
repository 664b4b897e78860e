/* verb_generate.c: `lateen generate`: continues a prompt; standard output receives the new text and
 * nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "cli/generate_aligned.h"
#include "cli/opened.h"
#include "cli/utf8_text.h"
#include "cli/verb.h"
#include "lateen/generate.h"
#include "tensor/backend.h"

#define GENERATE_OPTIONS(X)                                                                        \
    LT_OPENED_OPTIONS(X)                                                                           \
    LT_OPENED_LORA_OPTION(X)                                                                       \
    X(TEXT, prompt, "prompt", "", 0, 0, "TEXT",                                                    \
      "text to continue; empty: start from the BOS token")                                         \
    X(STR, prompt_file, "prompt-file", "", 0, 0, "FILE",                                           \
      "read the prompt from a file; -: standard input")                                            \
    LT_UTF8_OPTION(X)                                                                              \
    X(I64, max_tokens, "max-tokens", "128", 0, 1e9, "N", "most new tokens")                        \
    LT_SAMPLING_OPTIONS(X)                                                                         \
    X(BOOL, ignore_eos, "ignore-eos", "false", 0, 0, "", "continue after the end-of-text token")   \
    X(BOOL, special, "special", "false", 0, 0, "",                                                 \
      "read special tokens in the prompt, and print those the model writes")                       \
    X(BOOL, echo, "echo", "false", 0, 0, "", "print the prompt first")                             \
    X(BOOL, stats, "stats", "false", 0, 0, "",                                                     \
      "print token counts and rates on standard error; with --align also the method's report")     \
    X(TEXT, align, "align", "", 0, 0, "JSON",                                                      \
      "a method of alignment, as the server's field `alignment`: {\"method\": \"best_of_n\", "     \
      "\"n\": 8}")                                                                                 \
    X(BOOL, json, "json", "false", 0, 0, "",                                                       \
      "with --align: print the whole answer as the server gives it, a JSON object")                \
    LT_BESIDE_OPTIONS(X)                                                                           \
    X(ENUM, speculate, "speculate", "none", 0, 0, LT_SPECULATE_CHOICES,                            \
      "with --align, " LT_SPECULATE_HELP)                                                          \
    X(STR, draft, "draft", "", 0, 0, "PATH", LT_DRAFT_HELP)

typedef struct {
    GENERATE_OPTIONS(LT_OPTION_FIELD)
} generate_options;
#define LT_OPTION_STRUCT generate_options
static const lt_option rows[] = {GENERATE_OPTIONS(LT_OPTION_ROW)};
const lt_option_table lt_verb_generate_options = LT_OPTION_TABLE("generate", rows);

static bool print_text(void *ctx, const char *text, size_t bytes) {
    (void)ctx;
    return fwrite(text, 1, bytes, stdout) == bytes && fflush(stdout) == 0;
}

static lt_generate_options how(const generate_options *o) {
    lt_generate_options g = lt_generate_defaults();
    g.sampling = LT_SAMPLING_OF(o);
    g.max_tokens = o->max_tokens;
    g.ignore_eos = o->ignore_eos;
    g.keep_special = o->special;
    g.encode_flags = LT_ENCODE_ADD_SPECIAL | (o->special ? LT_ENCODE_PARSE_SPECIAL : 0);
    return g;
}

/* Uses the server's code, which also loads what is beside the model. */
static lt_err run_aligned(generate_options *o, const char *prompt, int argc, char **argv) {
    generate_options own;
    char found[LT_PATH_BYTES];
    const char *model = o->model;
    if (model[0] == '\0') {
        LT_TRY(lt_opened_default_model(found, LT_DEFAULT_WRITES));
        model = found;
    }
    lt_generate_aligned g = {.served = LT_SERVED_OF(o, model, o->lora),
                             .prompt = prompt,
                             .align = o->align,
                             .engine = {.speculate = (lt_speculate)o->speculate},
                             .logit_bias = o->logit_bias,
                             .max_tokens = o->max_tokens,
                             .ignore_eos = o->ignore_eos,
                             .keep_special = o->special,
                             .own_defaults = o->generation_config == 0,
                             .echo = o->echo,
                             .stats = o->stats,
                             .json = o->json,
                             .table = &lt_verb_generate_options,
                             .obj = o,
                             .own = &own,
                             .argc = argc,
                             .argv = argv};
    LT_TRY(lt_served_read(&g.served, o->second));
    LT_TRY(lt_served_draft(&g.served, &g.engine, o->draft));
    lt_device_few_queues();
    return lt_generate_aligned_run(&g);
}

/* Options that only methods of alignment read. */
static lt_err check_aligned(const generate_options *o) {
    if (o->align[0] == '\0' &&
        (o->json || o->steer[0] != '\0' || o->second[0] != '\0' || o->reward[0] != '\0' ||
         o->reward_tokenizer[0] != '\0' || o->speculate != 0 || o->draft[0] != '\0')) {
        LT_FAIL(LT_ERR_ARG, "generate: --json, --steer, --second, --reward, --reward-tokenizer, "
                            "--speculate and --draft have no effect without --align");
    }
    return LT_OK;
}

static lt_err run(generate_options *o, const char *prompt, int argc, char **argv) {
    lt_err err = LT_OK;
    lt_generate_options g;
    lt_generate_stats st = {0};
    lt_opened m = {0};
    lt_session *s = NULL;
    lt_logit_bias *bias = NULL;

    lt_device_few_queues();
    LT_TRY_DONE(lt_opened_open(&m, o->model, o->lora, o->tokenizer, (lt_opened_dtype)o->dtype,
                               o->device, o->threads));
    if (o->generation_config == 0) {
        LT_TRY_DONE(lt_opened_defaults(m.model, &lt_verb_generate_options, o, argc, argv));
    }
    g = how(o);
    LT_TRY_DONE(lt_bias_read(&g.sampling, &bias, o->logit_bias));
    LT_TRY_DONE(
        lt_session_open(&s, m.model, 1, lt_generate_room(m.model, strlen(prompt), o->max_tokens)));
    if (o->echo) {
        print_text(NULL, prompt, strlen(prompt));
    }
    LT_TRY_DONE(lt_generate(s, m.model, m.tokenizer, prompt, &g, print_text, NULL, &st));
    if (isatty(STDOUT_FILENO)) {
        putchar('\n');
    }
    if (o->stats) {
        fprintf(stderr,
                "prompt %lld tokens in %.3f s (%.1f tok/s), %lld new in %.3f s (%.1f tok/s)\n",
                (long long)st.prompt_tokens, st.prompt_s, (double)st.prompt_tokens / st.prompt_s,
                (long long)st.new_tokens, st.new_s, lt_generate_rate(&st));
    }
done:
    lt_session_close(s);
    lt_opened_close(&m);
    free(bias);
    return err;
}

int lt_verb_generate(int argc, char **argv);
int lt_verb_generate(int argc, char **argv) {
    static const char prose[] =
        "Continue a prompt. Standard output receives the new text and nothing else. A text ends "
        "at "
        "any of the model's\nending tokens (eos_token_id of generation_config.json, else of "
        "config.json, and the tokenizer's), or after --max-tokens.";
    generate_options o;
    int n = 0, status = LT_EXIT_DONE;
    char *from_file = NULL, *prompt = NULL;
    const char *given;
    lt_text mended = {0};
    lt_err err = LT_OK;

    if (!lt_verb_parse(&lt_verb_generate_options, &o, argc, argv,
                       "generate [--model M] [--tokenizer T] --prompt P [options]", prose, NULL, 0,
                       &n, &status)) {
        return status;
    }
    if (o.prompt_file[0] != '\0' && o.prompt[0] != '\0') {
        err = lt_error_set(LT_ERR_ARG, "generate: give --prompt or --prompt-file, not both");
    } else if (o.prompt_file[0] != '\0') {
        err = lt_prompt_read(&from_file, o.prompt_file);
    }
    if (err == LT_OK && from_file == NULL) { /* The options are read again after it. */
        prompt = strdup(o.prompt);
        err = prompt != NULL ? LT_OK : lt_error_set(LT_ERR_OOM, "prompt");
    }
    given = from_file != NULL ? from_file : prompt;
    if (err == LT_OK) {
        err = lt_utf8_mend_one(from_file != NULL ? o.prompt_file : "--prompt", o.utf8 == 1, &given,
                               &mended);
    }
    if (err == LT_OK) {
        err = check_aligned(&o);
    }
    if (err == LT_OK) {
        err = (o.align[0] != '\0' ? run_aligned : run)(&o, given, argc, argv);
    }
    lt_text_free(&mended);
    lt_prompt_free(from_file);
    free(prompt);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
