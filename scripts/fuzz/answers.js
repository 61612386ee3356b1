/** Takes answers off what comes in. Throws at anything that is no answer. */
export class AnswerReader {
    answers = [];
    #isHead;
    #text = '';
    #interim = 0;
    /** `isHead` says whether the request of an answer was HEAD; undefined where nobody knows. */
    constructor(isHead) {
        this.#isHead = isHead;
    }
    get rest() {
        return this.#text;
    }
    push(text) {
        this.#text += text;
        let at = 0;
        for (;;) {
            const found = this.#read(at, false);
            if (found === undefined)
                break;
            at = found;
        }
        if (at > 0)
            this.#text = this.#text.slice(at);
    }
    /** The service sends no more. */
    end() {
        const end = this.#text === '' ? 0 : this.#read(0, true);
        if (end === undefined)
            throw new Error(`the answers end with ${JSON.stringify(this.#text.slice(0, 300))}`);
        this.#text = this.#text.slice(end);
    }
    #read(from, ended) {
        const text = this.#text;
        const headEnd = text.indexOf('\r\n\r\n', from);
        if (headEnd < 0)
            return undefined;
        const [line = '', ...fields] = text.slice(from, headEnd).split('\r\n');
        const status = Number(/^HTTP\/1\.1 ([1-5]\d\d) [\x20-\x7e]*$/.exec(line)?.[1]);
        if (Number.isNaN(status))
            throw new Error(`no status line: ${JSON.stringify(line.slice(0, 200))}`);
        const headers = new Map();
        for (const field of fields) {
            const [, name, value = ''] = /^([A-Za-z-]+): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)$/.exec(field) ?? [];
            if (name === undefined)
                throw new Error(`no header line: ${JSON.stringify(field.slice(0, 200))}`);
            const known = headers.get(name.toLowerCase());
            if (known)
                known.push(value);
            else
                headers.set(name.toLowerCase(), [value]);
        }
        const at = headEnd + 4;
        if (status < 200) {
            if (status !== 100 || fields.length > 0)
                throw new Error(`the interim answer ${JSON.stringify(text.slice(from, at))}`);
            this.#interim += 1;
            return at;
        }
        const isHead = this.#isHead(this.answers.length) ??
            (text.startsWith('HTTP/1.1 ', at) || (ended && at === text.length));
        const found = status === 204 || isHead
            ? { body: '', end: at, framing: 'none' }
            : readBody(text, at, headers, ended);
        if (found === undefined)
            return undefined;
        this.answers.push({
            status,
            headers,
            body: found.body,
            framing: found.framing,
            interim: this.#interim,
        });
        this.#interim = 0;
        return found.end;
    }
}
/** Undefined while the body is not whole. */
function readBody(text, at, headers, ended) {
    const [lengths, codings] = [headers.get('content-length'), headers.get('transfer-encoding')];
    if (lengths && codings)
        throw new Error('an answer with Content-Length and Transfer-Encoding');
    if (lengths) {
        if (lengths.length > 1 || !/^\d+$/.test(lengths[0] ?? ''))
            throw new Error(`Content-Length: ${lengths.join(' and ')}`);
        const end = at + Number(lengths[0]);
        return text.length < end ? undefined : { body: text.slice(at, end), end, framing: 'length' };
    }
    if (!codings)
        return ended ? { body: text.slice(at), end: text.length, framing: 'close' } : undefined;
    if (codings.join() !== 'chunked')
        throw new Error(`Transfer-Encoding: ${codings.join(' and ')}`);
    const pieces = [];
    for (;;) {
        const lineEnd = text.indexOf('\r\n', at);
        if (lineEnd < 0)
            return undefined;
        const line = text.slice(at, lineEnd);
        if (!/^[0-9a-f]{1,8}$/i.test(line))
            throw new Error(`no chunk size: ${JSON.stringify(line.slice(0, 100))}`);
        const start = lineEnd + 2;
        const end = start + Number.parseInt(line, 16);
        if (text.length < end + 2)
            return undefined;
        if (!text.startsWith('\r\n', end))
            throw new Error('a chunk that does not end where it says');
        if (end === start)
            return { body: pieces.join(''), end: end + 2, framing: 'chunked' };
        pieces.push(text.slice(start, end));
        at = end + 2;
    }
}
