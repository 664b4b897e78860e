/* verb_tokenize.c: `lateen tokenize`: turns files into a token shard (tokenize_files.c), and text
 * into ids and back on the terminal: JSON lines through a pipe, one text, or one list of ids. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/error.h"
#include "base/json.h"
#include "cli/chat_options.h"
#include "cli/platform/copying.h"
#include "cli/data/tokenize_files.h"
#include "cli/utf8_text.h"
#include "cli/verb.h"
#include "data/json_line.h"
#include "data/tokenizer/bpe.h"
#include "data/tokenizer/json_pull.h"
#include "lateen/tokenizer.h"

#define TOKENIZE_OPTIONS(X)                                                                        \
    X(STR, tokenizer, "tokenizer", "", 0, 1, "path",                                               \
      "tokenizer.json, tekken.json, .model, vocab.bpe, .tiktoken, tokenizer.bin, GGUF, or a "      \
      "folder")                                                                                    \
    X(STR, pattern, "pattern", "", 0, 0, "name",                                                   \
      "pre-tokenizer for a file that names none: gpt2, cl100k, o200k, llama3, qwen2, tekken, or "  \
      "a "                                                                                         \
      "regular expression")                                                                        \
    X(BOOL, special, "special", "true", 0, 0, "",                                                  \
      "add special tokens (BOS, EOS) and recognise them in the text; --no-special for neither")    \
    X(BOOL, jsonl, "jsonl", "false", 0, 0, "",                                                     \
      "read lines {\"text\": ...} from standard input, print lines {\"ids\": [...]}; with "        \
      "--decode the other way round; with --chat, lines {\"messages\": [...]} become "             \
      "{\"ids\": [...], \"mask\": [...]}")                                                         \
    X(TEXT, text, "text", "", 0, 0, "text", "tokenise this text and print its ids and pieces")     \
    X(BOOL, decode, "decode", "false", 0, 0, "",                                                   \
      "read ids from standard input (numbers, or lines {\"ids\": [...]}) and print their text")

/* One table: the options of every mode, then those for files. */
typedef struct {
    TOKENIZE_OPTIONS(LT_OPTION_FIELD)
    lt_chat_options chat;
    lt_tokenize_files_options files;
} tokenize_options;
#define LT_OPTION_STRUCT tokenize_options
#define FILES_ROW(type, field, name, fallback, min, max, unit, help)                               \
    LT_OPTION_ROW(type, files.field, name, fallback, min, max, unit, help)
#define CHAT_ROW(type, field, name, fallback, min, max, unit, help)                                \
    LT_OPTION_ROW(type, chat.field, name, fallback, min, max, unit, help)
static const lt_option rows[] = {TOKENIZE_OPTIONS(LT_OPTION_ROW) CHAT_OPTIONS(CHAT_ROW)
                                     TOKENIZE_FILES_OPTIONS(FILES_ROW)};
const lt_option_table lt_verb_tokenize_options = LT_OPTION_TABLE("tokenize", rows);

#define READ_BYTES (1u << 20)
#define MAX_LINE   (1ull << 31)

/* Lines of standard input, without their newline. */
typedef struct {
    lt_text buffer;
    size_t at;
    uint64_t line;
    bool end;
} line_reader;

static lt_err next_line(line_reader *r, const char **line, size_t *n, bool *more) {
    size_t searched = r->at;
    for (;;) {
        const char *stop = r->buffer.n > searched
                               ? memchr(r->buffer.data + searched, '\n', r->buffer.n - searched)
                               : NULL;
        ssize_t got;
        if (stop != NULL || (r->end && r->buffer.n > r->at)) {
            *line = r->buffer.data + r->at;
            *n = stop != NULL ? (size_t)(stop - *line) : r->buffer.n - r->at;
            r->at += *n + (stop != NULL);
            if (r->line++ == 0 && *n >= 3 && memcmp(*line, "\xEF\xBB\xBF", 3) == 0) {
                *line += 3; /* A byte-order mark. */
                *n -= 3;
            }
            *more = true;
            return LT_OK;
        }
        if (r->end) {
            *more = false;
            return LT_OK;
        }
        if (r->at > 0) { /* Before the first line there is no buffer yet. */
            memmove(r->buffer.data, r->buffer.data + r->at, r->buffer.n - r->at);
        }
        r->buffer.n -= r->at;
        r->at = 0;
        searched = r->buffer.n;
        if (r->buffer.n > MAX_LINE) {
            LT_FAIL(LT_ERR_LIMIT, "standard input: line %llu is longer than %llu bytes",
                    (unsigned long long)r->line + 1, MAX_LINE);
        }
        LT_TRY(lt_text_reserve(&r->buffer, READ_BYTES));
        do {
            got = read(STDIN_FILENO, r->buffer.data + r->buffer.n, r->buffer.room - r->buffer.n);
        } while (got < 0 && errno == EINTR);
        if (got < 0) {
            LT_FAIL(LT_ERR_IO, "standard input: %s", strerror(errno));
        }
        r->buffer.n += (size_t)got;
        r->end = got == 0;
    }
}

/* The string of the member "text" of a line, which is one JSON object, and the number of its lone
 * surrogate escapes, which become U+FFFD. */
static lt_err text_of_line(const char *line, size_t n, lt_text *out, lt_lone_escapes *lone) {
    lt_err err = LT_OK;
    lt_json_pull j = lt_json_pull_over(line, n, "standard input");
    lt_slice key, value;
    bool more, found = false;

    out->n = 0;
    LT_TRY_DONE(lt_json_pull_begin(&j, '{'));
    for (;;) {
        LT_TRY_DONE(lt_json_pull_key(&j, &key, &more));
        if (!more) {
            break;
        }
        if (lt_slice_is(key, "text")) {
            LT_TRY_DONE(lt_json_pull_string(&j, &value));
            *lone = j.lone;
            out->n = 0;
            LT_TRY_DONE(lt_text_put(out, value.data, value.n));
            found = true;
        } else {
            LT_TRY_DONE(lt_json_pull_skip(&j, NULL));
        }
    }
    LT_TRY_DONE(lt_json_pull_end(&j));
    if (!found) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "standard input: an object without \"text\"");
    }
done:
    lt_json_pull_close(&j);
    return err;
}

static lt_err put_number(lt_text *out, uint32_t v) {
    char digits[12];
    int at = sizeof digits;
    do {
        digits[--at] = (char)('0' + v % 10);
        v /= 10;
    } while (v > 0);
    return lt_text_put(out, digits + at, sizeof digits - (size_t)at);
}

/* mask: one byte per id, or NULL. */
static lt_err put_ids(lt_text *out, const lt_ids *ids, const unsigned char *mask) {
    LT_TRY(lt_text_put(out, "{\"ids\": [", 9));
    for (size_t i = 0; i < ids->n; i++) {
        LT_TRY(i > 0 ? lt_text_put(out, ", ", 2) : LT_OK);
        LT_TRY(put_number(out, ids->data[i]));
    }
    LT_TRY(mask != NULL ? lt_text_put(out, "], \"mask\": [", 12) : LT_OK);
    for (size_t i = 0; mask != NULL && i < ids->n; i++) {
        LT_TRY(i > 0 ? lt_text_put(out, ", ", 2) : LT_OK);
        LT_TRY(lt_text_put(out, mask[i] != 0 ? "1" : "0", 1));
    }
    return lt_text_put(out, "]}\n", 3);
}

static lt_err flush_out(lt_text *out) {
    if (out->n > 0 && (fwrite(out->data, 1, out->n, stdout) != out->n || fflush(stdout) != 0)) {
        LT_FAIL(LT_ERR_IO, "standard output: %s", strerror(errno));
    }
    out->n = 0;
    return LT_OK;
}

static bool is_blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if (s[i] != ' ' && s[i] != '\t' && s[i] != '\r') {
            return false;
        }
    }
    return true;
}

/* One line: {"text"} to {"ids"}, or a conversation to {"ids", "mask"}. */
typedef struct {
    const lt_tokenizer *t;
    lt_tokenizer_scratch *s;
    const lt_chat_source *chat; /* NULL: lines are texts. */
    unsigned flags;
    lt_text text, mended;
    lt_ids ids;
    bool fails; /* --invalid-utf8 fail */
    lt_utf8_tally tally;
} line_encoder;

#define STDIN_NAME "standard input"

static lt_err encode_line(line_encoder *e, const char *line, size_t n, uint64_t number,
                          lt_text *out) {
    unsigned char *mask = NULL;
    lt_lone_escapes lone = {0};
    size_t unused;
    lt_err err;
    e->ids.n = 0;
    if (e->chat != NULL) {
        lone = lt_json_line_lone(line, n);
        LT_TRY(lt_utf8_mend(STDIN_NAME, number, e->fails, &line, &n, &lone, &e->mended, &e->tally));
        if (lone.n > 0) { /* The line is now the copy. */
            lt_json_line_replace_lone(e->mended.data, n);
        }
        LT_TRY(lt_chat_rows_encode(&e->chat->rows, e->s, line, n, &e->ids, &mask, &unused));
    } else {
        LT_TRY(text_of_line(line, n, &e->text, &lone));
        line = e->text.data;
        n = e->text.n;
        LT_TRY(lt_utf8_mend(STDIN_NAME, number, e->fails, &line, &n, &lone, &e->mended, &e->tally));
        LT_TRY(lt_tokenizer_encode(e->t, e->s, line, n, e->flags, &e->ids));
    }
    err = put_ids(out, &e->ids, mask);
    free(mask);
    return err;
}

static lt_err run_jsonl(line_encoder *e) {
    lt_err err = LT_OK;
    line_reader in = {0};
    lt_text out = {0};
    const char *line;
    size_t n;
    bool more;

    for (;;) {
        /* No more input is buffered: flush, so that the reader of the pipe can continue. */
        if (in.at == in.buffer.n || out.n > READ_BYTES) {
            LT_TRY_DONE(flush_out(&out));
        }
        LT_TRY_DONE(next_line(&in, &line, &n, &more));
        if (!more) {
            break;
        }
        if (is_blank(line, n)) {
            continue;
        }
        err = encode_line(e, line, n, in.line, &out);
        if (err != LT_OK) { /* The output before the error is still written. */
            err = lt_error_prefix(err, "line %llu", (unsigned long long)in.line);
            if (flush_out(&out) != LT_OK) {
                err = LT_ERR_IO;
            }
            goto done;
        }
    }
    LT_TRY_DONE(flush_out(&out));
done:
    lt_utf8_tell(STDIN_NAME, &e->tally);
    lt_text_free(&in.buffer);
    lt_text_free(&out);
    lt_text_free(&e->text);
    lt_text_free(&e->mended);
    lt_ids_free(&e->ids);
    return err;
}

static lt_err run_text(const lt_tokenizer *t, lt_tokenizer_scratch *s, unsigned flags,
                       const char *text, bool fails) {
    lt_err err = LT_OK;
    lt_ids ids = {0};
    lt_text out = {0}, mended = {0};
    LT_TRY_DONE(lt_utf8_mend_one("--text", fails, &text, &mended));
    LT_TRY_DONE(lt_tokenizer_encode(t, s, text, strlen(text), flags, &ids));
    LT_TRY_DONE(put_ids(&out, &ids, NULL));
    LT_TRY_DONE(flush_out(&out));
    for (size_t i = 0; i < ids.n && isatty(STDOUT_FILENO); i++) {
        size_t n;
        const char *piece = lt_tokenizer_piece(t, ids.data[i], &n);
        printf("%8u  '%.*s'\n", ids.data[i], (int)n, piece);
    }
done:
    lt_text_free(&mended);
    lt_ids_free(&ids);
    lt_text_free(&out);
    return err;
}

static bool is_gap(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == ',';
}

/* One id, at line[*at], up to the next blank, comma or end. */
static lt_err id_at(const char *line, size_t n, size_t *at, lt_ids *out) {
    const size_t from = *at;
    uint64_t v = 0;
    bool number = true;
    while (*at < n && !is_gap(line[*at])) {
        const int digit = line[*at] - '0';
        number = number && digit >= 0 && digit <= 9;
        v = v > UINT32_MAX ? v : v * 10 + (uint64_t)(number ? digit : 0);
        ++*at;
    }
    if (!number || v >= UINT32_MAX) {
        LT_FAIL(LT_ERR_ARG, "'%.*s' is not a token id", (int)(*at - from < 40 ? *at - from : 40),
                line + from);
    }
    return lt_ids_append(out, &(uint32_t){(uint32_t)v}, 1);
}

static lt_err ids_of_json(const json_t *ids, lt_ids *out) {
    if (!json_is_array(ids)) {
        LT_FAIL(LT_ERR_FORMAT, "not a list of ids, nor an object with \"ids\", a list of them");
    }
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *id = json_array_get(ids, i);
        const json_int_t v = json_integer_value(id);
        if (!json_is_integer(id) || v < 0 || v >= UINT32_MAX) {
            LT_FAIL(LT_ERR_FORMAT, "ids[%zu] is not a token id", i);
        }
        LT_TRY(lt_ids_append(out, &(uint32_t){(uint32_t)v}, 1));
    }
    return LT_OK;
}

/* The ids of a line: [1, 2], {"ids": [1, 2]}, or numbers separated by blanks or commas. */
static lt_err ids_of_line(const char *line, size_t n, lt_ids *out) {
    size_t at = 0;
    out->n = 0;
    while (at < n && is_gap(line[at])) {
        at++;
    }
    if (at < n && (line[at] == '{' || line[at] == '[')) {
        json_t *root = NULL;
        lt_err err;
        LT_TRY(lt_json_parse(&root, line, n, STDIN_NAME));
        err = ids_of_json(json_is_object(root) ? json_object_get(root, "ids") : root, out);
        json_decref(root);
        return err;
    }
    while (at < n) {
        if (is_gap(line[at])) {
            at++;
            continue;
        }
        LT_TRY(id_at(line, n, &at, out));
    }
    return LT_OK;
}

static lt_err put_json_text(lt_text *out, const char *s, size_t n) {
    LT_TRY(lt_text_put(out, "{\"text\": \"", 10));
    for (size_t i = 0; i < n; i++) {
        char escaped[8];
        const bool plain = (uint8_t)s[i] >= 0x20 && s[i] != '"' && s[i] != '\\';
        const int size = plain ? 0 : snprintf(escaped, sizeof escaped, "\\u%04x", (uint8_t)s[i]);
        LT_TRY(plain ? lt_text_put(out, s + i, 1) : lt_text_put(out, escaped, (size_t)size));
    }
    return lt_text_put(out, "\"}\n", 3);
}

static lt_err run_decode(const lt_tokenizer *t, bool special, bool json) {
    lt_err err = LT_OK;
    line_reader in = {0};
    lt_ids ids = {0};
    lt_text out = {0};
    char *text = NULL;
    const char *line;
    size_t n;
    bool more;
    for (;;) {
        LT_TRY_DONE(next_line(&in, &line, &n, &more));
        if (!more) {
            break;
        }
        err = ids_of_line(line, n, &ids);
        if (err != LT_OK) { /* What came before it is still written. */
            err = lt_error_prefix(err, STDIN_NAME ", line %llu", (unsigned long long)in.line);
            err = flush_out(&out) != LT_OK ? LT_ERR_IO : err;
            goto done;
        }
        free(text);
        text = NULL;
        LT_TRY_DONE(lt_tokenizer_decode(t, ids.data, ids.n, !special, &text, &n));
        if (json) {
            LT_TRY_DONE(put_json_text(&out, text, n));
        } else {
            LT_TRY_DONE(lt_text_put(&out, text, n));
            LT_TRY_DONE(lt_text_put(&out, "\n", 1));
        }
        if (in.at == in.buffer.n || out.n > READ_BYTES) {
            LT_TRY_DONE(flush_out(&out));
        }
    }
    LT_TRY_DONE(flush_out(&out));
done:
    free(text);
    lt_text_free(&out);
    lt_text_free(&in.buffer);
    lt_ids_free(&ids);
    return err;
}

static bool is_chat(const lt_chat_options *o) {
    return o->on || o->chat_template[0] != '\0';
}

static lt_err open_chat(lt_chat_source *out, const tokenize_options *o, const lt_tokenizer *t) {
    const bool pair = o->files.prompt_field[0] != '\0';
    return lt_chat_source_open(
        out, &(lt_chat_source_options){.tokenizer = t,
                                       .tokenizer_path = o->tokenizer,
                                       .template = o->chat.chat_template,
                                       .option = "--chat-template",
                                       .messages = o->chat.messages,
                                       .prompt = pair ? o->files.prompt_field : NULL,
                                       .answer = pair ? o->files.field : NULL,
                                       .last_only = o->chat.turns != 0});
}

/* Exactly one of the four modes must be requested, without options of another mode. */
static lt_err check_modes(const tokenize_options *o, bool text_given, int n_inputs) {
    const bool chat = is_chat(&o->chat);
    if ((o->jsonl || o->decode) + text_given + (n_inputs > 0) != 1) {
        LT_FAIL(LT_ERR_ARG,
                "tokenize: name input files, or say one of --jsonl, --text and --decode");
    }
    if ((n_inputs > 0) != (o->files.out[0] != '\0')) {
        LT_FAIL(LT_ERR_ARG, n_inputs > 0 ? "tokenize: input files need --out PREFIX"
                                         : "tokenize: --out needs input files");
    }
    if (o->tokenizer[0] == '\0') {
        LT_FAIL(LT_ERR_ARG, "no tokenizer: give --tokenizer with a file or folder");
    }
    if (chat && (text_given || o->decode)) {
        LT_FAIL(LT_ERR_ARG, "tokenize: --chat needs input files or --jsonl");
    }
    if (chat && !o->special) {
        LT_FAIL(LT_ERR_ARG, "tokenize: a conversation is marked by special tokens: --chat does not "
                            "go with --no-special");
    }
    return LT_OK;
}

int lt_verb_tokenize(int argc, char **argv);
int lt_verb_tokenize(int argc, char **argv) {
    tokenize_options o;
    lt_tokenizer_options how = {0};
    lt_tokenizer *t = NULL;
    lt_chat_source chat = {0};
    line_encoder e = {0};
    lt_err err = LT_OK;
    const char **inputs = calloc((size_t)argc, sizeof *inputs);
    int n = 0, status = LT_EXIT_DONE;
    bool text_given = false;

    if (!lt_verb_parse(
            &lt_verb_tokenize_options, &o, argc, argv,
            "tokenize --tokenizer T (INPUT... --out PREFIX | --jsonl | --text TEXT | --decode)",
            "Turn text into token ids, or ids into text, exactly as the library that defined the "
            "tokenizer's file format.\n"
            "INPUT... --out PREFIX reads .txt and .jsonl files (plain, .gz, .zst) and writes a "
            "token shard "
            "for training;\nafter an interruption, the same command continues where it stopped.",
            inputs, inputs != NULL ? argc : 0, &n, &status)) {
        free(inputs);
        return status;
    }
    for (int i = 1; i < argc; i++) {
        text_given |= strncmp(argv[i], "--text", 6) == 0;
    }
    LT_TRY_DONE(check_modes(&o, text_given, n));
    e.flags = o.special ? LT_ENCODE_DEFAULT : LT_ENCODE_PLAIN;
    how.pattern = o.pattern[0] != '\0' ? o.pattern : NULL;
    LT_TRY_DONE(lt_cli_bring_option(o.tokenizer));
    LT_TRY_DONE(lt_tokenizer_open(&t, o.tokenizer, &how));
    LT_TRY_DONE(lt_tokenizer_scratch_open(&e.s, t));
    if (is_chat(&o.chat)) {
        LT_TRY_DONE(open_chat(&chat, &o, t));
        e.chat = &chat;
    }
    e.t = t;
    e.fails = o.files.utf8 == LT_TOKENIZE_UTF8_FAIL;
    if (n > 0) {
        LT_TRY_DONE(
            lt_tokenize_files_run(&o.files, inputs, (size_t)n, t, o.tokenizer, e.flags, e.chat));
    } else if (o.decode) {
        LT_TRY_DONE(run_decode(t, o.special, o.jsonl));
    } else if (o.jsonl) {
        e.flags |= LT_ENCODE_FIT;
        LT_TRY_DONE(run_jsonl(&e));
    } else {
        LT_TRY_DONE(run_text(t, e.s, e.flags | LT_ENCODE_FIT, o.text,
                             o.files.utf8 == LT_TOKENIZE_UTF8_FAIL));
    }
done:
    lt_chat_source_close(&chat);
    lt_tokenizer_scratch_close(e.s);
    lt_tokenizer_close(t);
    free(inputs);
    return err == LT_OK ? LT_EXIT_DONE : lt_verb_fail(err);
}
