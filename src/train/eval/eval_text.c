/* eval_text.c: the loss on documents of text files. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "data/text_reader.h"
#include "train/eval/score.h"

/* Score a document in windows of tokens; the last token of a window begins the next. The last
 * window, which would be shorter, begins earlier, so that its predictions have as much context as
 * fits. */
static lt_err score_document(lt_scorer *s, const lt_text_record *doc, double *nats,
                             lt_eval_text_result *sum) {
    lt_err err = LT_OK;
    int32_t *ids;
    int64_t n;

    s->whole.n = 0;
    LT_TRY(lt_tokenizer_encode(s->options->tokenizer, s->scratch, doc->data, doc->bytes,
                               LT_ENCODE_PLAIN, &s->whole));
    n = (int64_t)s->whole.n;
    ids = malloc((size_t)(n + 1) * sizeof *ids);
    if (ids == NULL) {
        LT_FAIL(LT_ERR_OOM, "%lld tokens", (long long)n);
    }
    ids[0] = s->first_id;
    if (n > 0) {
        memcpy(ids + 1, s->whole.data, (size_t)n * sizeof *ids);
    }
    for (int64_t at = 0; at < n; at += s->seq) {
        const int64_t count = n - at < s->seq ? n - at : s->seq;
        /* The last window also has the full length. */
        const int64_t again = at > 0 ? s->seq - count : 0;
        lt_score score;
        LT_TRY_DONE(lt_score_tokens(s, ids + at - again, again + count + 1, again + 1, &score));
        *nats -= score.log_prob;
        if (s->options->progress != NULL) {
            s->options->progress(s->options->ctx, sum->tokens + at + count, 0);
        }
    }
    sum->tokens += n;
    sum->bytes += (int64_t)doc->bytes;
    sum->documents++;
done:
    free(ids);
    return err;
}

static lt_err score_file(lt_scorer *s, const char *path, double *nats, lt_eval_text_result *sum) {
    lt_err err = LT_OK;
    lt_text_reader *reader = NULL;
    lt_text_record doc;
    bool more = true;

    LT_TRY(lt_text_reader_open(&reader, path, NULL));
    while (s->options->limit == 0 || sum->documents < s->options->limit) {
        LT_TRY_DONE(lt_text_reader_document(reader, &doc, &more));
        if (!more) {
            break;
        }
        LT_TRY_DONE(score_document(s, &doc, nats, sum));
    }
done:
    lt_text_reader_close(reader);
    return err;
}

lt_err lt_eval_text(lt_eval_text_result *out, const lt_eval_options *o, const char *const *paths,
                    int n_paths) {
    lt_err err = LT_OK;
    lt_eval_text_result sum = {0};
    lt_scorer s = {0};
    double nats = 0.0;

    LT_TRY_DONE(lt_scorer_open(&s, o));
    for (int i = 0; i < n_paths; i++) {
        LT_TRY_DONE(score_file(&s, paths[i], &nats, &sum));
    }
    if (sum.tokens == 0) {
        LT_FAIL_DONE(LT_ERR_FORMAT, "no text to evaluate in %s%s",
                     n_paths > 0 ? paths[0] : "no file", n_paths > 1 ? ", ..." : "");
    }
    sum.loss = nats / (double)sum.tokens;
    sum.perplexity = exp(sum.loss);
    sum.bits_per_byte = nats / log(2.0) / (double)sum.bytes;
    *out = sum;
done:
    lt_scorer_close(&s);
    return err;
}
