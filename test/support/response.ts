/** One response as it came over the wire; all text is latin1: a character is a byte. */
export interface WireAnswer {
  readonly status: number
  readonly version: string
  /** Names in lower case, each with all its values. */
  readonly headers: ReadonlyMap<string, readonly string[]>
  readonly body: string
  /** What said where the body ends; `close` is the end of the connection. */
  readonly framing: 'none' | 'length' | 'chunked' | 'close'
  /** How many interim responses (100) came before it. */
  readonly interim: number
}

interface Begun extends Omit<WireAnswer, 'body'> {
  readonly parts: string[]
}

/** Reads the responses of one connection, strictly (RFC 9112). @throws Error at anything else. */
export class ResponseReader {
  readonly answers: WireAnswer[] = []
  readonly #isHead: (index: number) => boolean | undefined
  #text = ''
  #interim = 0
  /** A chunked response whose end has not come: no chunk of it is read twice. */
  #begun: Begun | undefined
  /** No response ends before this. */
  #end = 0

  /** `isHead` says whether the request of a response was HEAD; undefined if that is unknown. */
  constructor(isHead: (index: number) => boolean | undefined) {
    this.#isHead = isHead
  }

  /** What came after the last whole response. */
  get rest(): string {
    if (!this.#begun) return this.#text
    const { version, status, parts } = this.#begun
    return `HTTP/${version} ${status}\r\n\r\n${parts.join('')}${this.#text}`
  }

  /** Takes what came; `ended` says that no more will. */
  push(text: string, ended = false): void {
    this.#text += text
    if (this.#text.length < this.#end && !ended) return
    this.#end = 0
    let at = 0
    while (at < this.#text.length) {
      const end = this.#begun ? this.#readChunk(this.#begun, at) : this.#read(at, ended)
      if (end === undefined) break
      at = end
    }
    if (at > 0) this.#text = this.#text.slice(at)
    this.#end -= at
  }

  /** The end of one response, or where its chunks begin; undefined while it is not whole. */
  #read(from: number, ended: boolean): number | undefined {
    const text = this.#text
    const headersEnd = text.indexOf('\r\n\r\n', from)
    if (headersEnd < 0) return undefined
    const [line = '', ...fields] = text.slice(from, headersEnd).split('\r\n')
    const [, version = '', code] = /^HTTP\/(1\.[01]) ([1-5]\d\d) [\x20-\x7e]*$/.exec(line) ?? []
    if (code === undefined) throw new Error(`no status line: ${JSON.stringify(line.slice(0, 200))}`)
    const status = Number(code)
    const headers = readHeaders(fields)
    const at = headersEnd + 4
    if (status < 200) {
      if (status !== 100 || fields.length > 0)
        throw new Error(`the interim answer ${JSON.stringify(text.slice(from, at))}`)
      this.#interim += 1
      return at
    }
    const isHead =
      this.#isHead(this.answers.length) ??
      (text.startsWith('HTTP/1.1 ', at) || (ended && at === text.length))
    const framing: WireAnswer['framing'] = status === 204 || isHead ? 'none' : framingOf(headers)
    const answer: Omit<WireAnswer, 'body'> = {
      status,
      version,
      headers,
      framing,
      interim: this.#interim,
    }
    if (framing === 'chunked') {
      this.#begun = { ...answer, parts: [] }
      return at
    }
    if (framing === 'close' && !ended) return undefined
    const bytes = {
      none: 0,
      close: text.length - at,
      length: Number(headers.get('content-length')),
    }
    const end = at + bytes[framing]
    this.#end = end
    if (text.length < end) return undefined
    return this.#add({ ...answer, body: text.slice(at, end) }, end)
  }

  /** The end of one chunk; undefined while it is not whole. */
  #readChunk(begun: Begun, from: number): number | undefined {
    const text = this.#text
    const lineEnd = text.indexOf('\r\n', from)
    if (lineEnd < 0) return undefined
    const line = text.slice(from, lineEnd)
    if (!/^[0-9a-f]{1,8}$/i.test(line))
      throw new Error(`no chunk size: ${JSON.stringify(line.slice(0, 100))}`)
    const start = lineEnd + 2
    const end = start + Number.parseInt(line, 16)
    this.#end = end + 2
    if (text.length < end + 2) return undefined
    if (!text.startsWith('\r\n', end)) throw new Error('a chunk that does not end where it says')
    if (end > start) {
      begun.parts.push(text.slice(start, end))
      return end + 2
    }
    const { parts, ...answer } = begun
    this.#begun = undefined
    return this.#add({ ...answer, body: parts.join('') }, end + 2)
  }

  #add(answer: WireAnswer, end: number): number {
    this.answers.push(answer)
    this.#interim = 0
    return end
  }
}

function readHeaders(fields: readonly string[]): Map<string, string[]> {
  const headers = new Map<string, string[]>()
  for (const field of fields) {
    const [, name, value = ''] =
      /^([A-Za-z-]+): ([\x21-\x7e](?:[\x20-\x7e]*[\x21-\x7e])?)$/.exec(field) ?? []
    if (name === undefined) throw new Error(`no header: ${JSON.stringify(field.slice(0, 200))}`)
    const known = headers.get(name.toLowerCase())
    if (known) known.push(value)
    else headers.set(name.toLowerCase(), [value])
  }
  return headers
}

/** How a body ends that a response has. @throws Error if its headers do not say it in one way. */
function framingOf(headers: WireAnswer['headers']): 'length' | 'chunked' | 'close' {
  const [lengths, codings] = [headers.get('content-length'), headers.get('transfer-encoding')]
  if (lengths && codings) throw new Error('an answer with Content-Length and Transfer-Encoding')
  if (codings && codings.join() !== 'chunked')
    throw new Error(`Transfer-Encoding: ${codings.join(' and ')}`)
  if (lengths && (lengths.length > 1 || !/^\d+$/.test(lengths[0] ?? '')))
    throw new Error(`Content-Length: ${lengths.join(' and ')}`)
  return codings ? 'chunked' : lengths ? 'length' : 'close'
}
