/* Reads one JSON object with exact integers, in linear time. */

import { HttpError } from '../errors.ts'
import { isInt64 } from '../plants/plant.ts'

// Every repetition in these patterns is of one character class: for a repeated group, V8's matcher
// would need a stack.
const LITERAL = /-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null/y
const PLAIN_CHARACTERS = /[^"\\\u0000-\u001f]*/y
const ESCAPE = /\\(?:["\\/bfnrt]|u[0-9A-Fa-f]{4})/y
/** An int64 as nearly every client writes it. */
const PLAIN_INTEGER = /^-?[0-9]{1,18}$/
const NUMBER = /^(-?)([0-9]+)(?:\.([0-9]+))?(?:[eE](.+))?$/
const INT64_DIGITS = 19
const isSpace = (code: number) => code === 0x20 || code === 0x0a || code === 0x0d || code === 0x09

type Value = string | bigint | undefined

/**
 * Reads one JSON object (RFC 8259) and returns those of its members that are wanted. A value is a
 * string, which may hold lone surrogates; or a bigint for a number that is exactly an int64, in any
 * notation. Every other value is checked, never built, and is undefined here.
 *
 * Why not JSON.parse: it rounds ids, keeps the last of two members of one name, and can be made to
 * take quadratic time. This takes linear time, and no call stack for nested values.
 * @throws HttpError `bodyNotJson`, or `memberRepeated` if the text is JSON but two members of the
 * object itself have one name.
 */
export function readObject(text: string, wanted: readonly string[]): ReadonlyMap<string, Value> {
  const scanner = new Scanner(text)
  const members = new Map<string, Value>()
  const names = new Set<string>()
  let repeated = false
  scanner.expect('{')
  if (!scanner.skipIf('}')) {
    do {
      const quotedName = nameOf(scanner.memberName())
      if (names.has(quotedName)) repeated = true
      names.add(quotedName)
      const value = scanner.value()
      const name = quotedName.slice(1)
      if (wanted.includes(name)) members.set(name, valueOf(value))
    } while (scanner.skipIf(','))
    scanner.expect('}')
  }
  scanner.expect('')
  if (repeated) throw new HttpError('memberRepeated')
  return members
}

/** Passes over a JSON text once, token by token, and returns the text of what it passed. */
class Scanner {
  readonly #text: string
  #at = 0
  /** How many brackets are open in a value. */
  #depth = 0
  /** For each of them: 1 for an object, 0 for an array. Bytes, so that they take little memory. */
  #areObjects: Uint8Array | undefined

  constructor(text: string) {
    this.#text = text
  }

  /** Skips whitespace, and the character if it is next; '' is the end of the text. */
  skipIf(character: string): boolean {
    if (this.#text.charAt(this.#skipSpace()) !== character) return false
    this.#at += character.length
    return true
  }

  expect(character: string): void {
    if (!this.skipIf(character)) throw new HttpError('bodyNotJson')
  }

  /** Passes a member's name and its colon. Returns the name as it is written, with its quotes. */
  memberName(): string {
    const start = this.#skipSpace()
    this.#passString()
    const name = this.#text.slice(start, this.#at)
    this.expect(':')
    return name
  }

  /** Passes one value, nested to any depth. Returns it as it is written. */
  value(): string {
    const start = this.#skipSpace()
    do {
      if (this.#isInObject) this.memberName()
      const first = this.#text.charAt(this.#skipSpace())
      if (first === '{' || first === '[') {
        this.#at++
        this.#areObjects ??= new Uint8Array(this.#text.length)
        this.#areObjects[this.#depth++] = Number(first === '{')
        if (!this.#closeIf()) continue
      } else if (first === '"') this.#passString()
      else this.#pass(LITERAL)
      while (this.#closeIf());
      if (this.#depth > 0) this.expect(',')
    } while (this.#depth > 0)
    return this.#text.slice(start, this.#at)
  }

  get #isInObject(): boolean {
    return this.#depth > 0 && this.#areObjects?.[this.#depth - 1] === 1
  }

  /** Passes the bracket that closes the innermost value, if it is next. */
  #closeIf(): boolean {
    if (this.#depth === 0 || !this.skipIf(this.#isInObject ? '}' : ']')) return false
    this.#depth--
    return true
  }

  #passString(): void {
    this.expect('"')
    this.#pass(PLAIN_CHARACTERS)
    while (this.#text.charAt(this.#at) !== '"') {
      this.#pass(ESCAPE)
      this.#pass(PLAIN_CHARACTERS)
    }
    this.#at++
  }

  #pass(pattern: RegExp): void {
    pattern.lastIndex = this.#at
    if (!pattern.test(this.#text)) throw new HttpError('bodyNotJson')
    this.#at = pattern.lastIndex
  }

  /** Skips whitespace. Returns the position after it. */
  #skipSpace(): number {
    while (isSpace(this.#text.charCodeAt(this.#at))) this.#at++
    return this.#at
  }
}

/**
 * A member's name, with one quote before it. V8 hashes strings that look like array indices without
 * a seed, so a hostile Set of them takes quadratic time, as in JSON.parse. With the quote no name
 * looks like one.
 */
function nameOf(written: string): string {
  return written.includes('\\') ? decode(`"\\${written}`) : written.slice(0, -1)
}

function valueOf(written: string): Value {
  if (written.startsWith('"')) return decode(written)
  return PLAIN_INTEGER.test(written) ? BigInt(written) : int64Of(written)
}

/** The text of a JSON string that was checked. */
function decode(written: string): string {
  return written.includes('\\') ? String(JSON.parse(written)) : written.slice(1, -1)
}

/** The exact value of a number if it is an int64. Checks its size before building it. */
function int64Of(written: string): bigint | undefined {
  const [, sign = '', whole, fraction = '', exponent = '0'] = NUMBER.exec(written) ?? []
  if (whole === undefined) return undefined
  const digits = (whole + fraction).replace(/^0+/, '')
  if (digits === '') return 0n
  let end = digits.length
  while (digits.charCodeAt(end - 1) === 0x30) end--
  // The value is digits[0..end] × 10^zeros. Exact where it matters: no text is long enough to bring
  // an exponent beyond 2^53 back into range.
  const zeros = Number(exponent) - fraction.length + (digits.length - end)
  if (zeros < 0 || end + zeros > INT64_DIGITS) return undefined
  const value = BigInt(sign + digits.slice(0, end) + '0'.repeat(zeros))
  return isInt64(value) ? value : undefined
}
