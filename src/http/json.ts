import { HttpError } from '../errors.ts'
import { isInt64 } from '../plants/plant.ts'

/** Stands for every array and object inside the body: they are checked, never built. */
export const NESTED: unique symbol = Symbol('nested')

// Every repetition in these patterns is of one character class: repeated groups make V8's matcher
// keep a stack.
const LITERAL = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/y
/** An int64 as nearly every client writes one. */
const PLAIN_INTEGER = /^-?[0-9]{1,18}$/
const NUMBER = /^(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE](.+))?$/
const UNICODE_ESCAPE = /u[0-9A-Fa-f]{4}/y
const INT64_DIGITS = 19
/** Codes of the characters that the scanner looks at one by one. */
const [QUOTE, COMMA, BACKSLASH, OPEN_ARRAY, OPEN_OBJECT, CLOSE_OBJECT] = [
  0x22, 0x2c, 0x5c, 0x5b, 0x7b, 0x7d,
]

/**
 * Reads one JSON object (RFC 8259) and answers with those of its members that are wanted.
 * JSON.parse would round ids, keep the last of two members of one name, and can be made to take
 * quadratic time; this takes linear time, and no call stack. A value is a string, true, false or
 * null as it is; a number that is exactly an int64, in any notation, as a bigint, and every other
 * number as NaN; an array or object as NESTED. Lone surrogates stay in strings: the guards judge
 * them.
 * @throws HttpError bodyNotJson, or memberRepeated where the text is JSON but a name of the object
 * itself stands twice.
 */
export function readObject(text: string, wanted: readonly string[]): ReadonlyMap<string, unknown> {
  const scanner = new Scanner(text)
  const members = new Map<string, unknown>()
  const names = new Set<string>()
  let repeated = false
  scanner.expect('{')
  if (!scanner.take('}')) {
    do {
      const name = nameOf(scanner.memberName())
      if (names.has(name)) repeated = true
      names.add(name)
      const value = scanner.value()
      const bare = name.slice(1)
      if (wanted.includes(bare)) members.set(bare, valueOf(value))
    } while (scanner.take(','))
    scanner.expect('}')
  }
  scanner.expect('')
  if (repeated) throw new HttpError('memberRepeated')
  return members
}

/** Walks over a JSON text once, token by token, and answers with the text of what it passed. */
class Scanner {
  readonly #text: string
  #at = 0

  constructor(text: string) {
    this.#text = text
  }

  /** Skips whitespace, then takes the character where it is the next; '' is the end of the text. */
  take(character: string): boolean {
    this.#skipSpace()
    if (this.#text.charAt(this.#at) !== character) return false
    this.#at += character.length
    return true
  }

  expect(character: string): void {
    if (!this.take(character)) throw new HttpError('bodyNotJson')
  }

  /**
   * Passes a member's name and its colon; answers with the name as it is written, quotes included.
   */
  memberName(): string {
    const start = this.#skipSpace()
    this.#passString()
    const name = this.#text.slice(start, this.#at)
    this.expect(':')
    return name
  }

  /**
   * Passes one value of any depth: the brackets still to be closed are kept here, not on the call
   * stack.
   */
  value(): string {
    const start = this.#skipSpace()
    const code = this.#text.charCodeAt(start)
    if (code === OPEN_ARRAY || code === OPEN_OBJECT) this.#passNested(code)
    else this.#passScalar(code)
    return this.#text.slice(start, this.#at)
  }

  #passNested(first: number): void {
    // A byte for each, so that a body of brackets takes little more memory than it is long.
    let due = new Uint8Array(64)
    let depth = 0
    let code = first
    for (;;) {
      if (code === OPEN_ARRAY || code === OPEN_OBJECT) {
        this.#at++
        // In ASCII a closing bracket stands two behind its opening one.
        const closer = code + 2
        code = this.#next()
        if (depth === due.length) due = twiceAsLong(due)
        due[depth++] = closer
        if (code !== closer) {
          if (closer === CLOSE_OBJECT) code = this.#nextMember()
          continue
        }
      } else {
        this.#passScalar(code)
        code = this.#next()
      }
      while (code === due[depth - 1]) {
        this.#at++
        if (--depth === 0) return
        code = this.#next()
      }
      if (code !== COMMA) throw new HttpError('bodyNotJson')
      this.#at++
      code = due[depth - 1] === CLOSE_OBJECT ? this.#nextMember() : this.#next()
    }
  }

  #nextMember(): number {
    this.memberName()
    return this.#next()
  }

  /** Skips whitespace; answers with where that ends. */
  #skipSpace(): number {
    while (isSpace(this.#text.charCodeAt(this.#at))) this.#at++
    return this.#at
  }

  /** The next character's code behind whitespace; NaN at the end. */
  #next(): number {
    let code = this.#text.charCodeAt(this.#at)
    while (isSpace(code)) code = this.#text.charCodeAt(++this.#at)
    return code
  }

  #passScalar(first: number): void {
    if (first === QUOTE) return this.#passString()
    this.#at = this.#endOf(LITERAL, this.#at)
  }

  #passString(): void {
    this.expect('"')
    let at = this.#at
    for (;;) {
      const code = this.#text.charCodeAt(at++)
      if (code === QUOTE) break
      if (code === BACKSLASH) at = this.#endOfEscape(at)
      // Not `code < 0x20`: behind the end of the text it is NaN.
      else if (!(code >= 0x20)) throw new HttpError('bodyNotJson')
    }
    this.#at = at
  }

  #endOfEscape(at: number): number {
    const escape = this.#text.charAt(at)
    return escape !== '' && '"\\/bfnrt'.includes(escape) ? at + 1 : this.#endOf(UNICODE_ESCAPE, at)
  }

  #endOf(pattern: RegExp, start: number): number {
    pattern.lastIndex = start
    if (!pattern.test(this.#text)) throw new HttpError('bodyNotJson')
    return pattern.lastIndex
  }
}

function twiceAsLong(bytes: Uint8Array): Uint8Array<ArrayBuffer> {
  const longer = new Uint8Array(2 * bytes.length)
  longer.set(bytes)
  return longer
}

function isSpace(code: number): boolean {
  return code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09
}

/**
 * The name behind the quote it was written with. The quote stays because V8 hashes strings that
 * look like array indices without a seed, so that a Set of such names, or JSON.parse on them, can
 * be made quadratic.
 */
function nameOf(written: string): string {
  return written.includes('\\') ? decode(`"\\${written}`) : written.slice(0, -1)
}

function valueOf(written: string): unknown {
  const first = written.charAt(0)
  if (first === '[' || first === '{') return NESTED
  if (first === '"') return decode(written)
  if (PLAIN_INTEGER.test(written)) return BigInt(written)
  return NUMBER.test(written) ? int64Of(written) : JSON.parse(written)
}

/** The string that a checked JSON string stands for. */
function decode(written: string): string {
  return written.includes('\\') ? String(JSON.parse(written)) : written.slice(1, -1)
}

/**
 * The exact value of a checked number where it is an int64, else NaN. Nothing is computed before
 * its size is known.
 */
function int64Of(written: string): bigint | number {
  const [, sign = '', whole = '', fraction = '', exponent = '0'] = NUMBER.exec(written) ?? []
  const digits = (whole + fraction).replace(/^0+/, '')
  if (digits === '') return 0n
  let end = digits.length
  while (digits.charCodeAt(end - 1) === 0x30) end--
  // Trailing zeros moved into the exponent. Exact wherever it can matter: past 2^53 no length of
  // text brings it back.
  const zeros = Number(exponent) - fraction.length + (digits.length - end)
  if (zeros < 0 || end + zeros > INT64_DIGITS) return NaN
  const value = BigInt(sign + digits.slice(0, end) + '0'.repeat(zeros))
  return isInt64(value) ? value : NaN
}
