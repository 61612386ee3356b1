/** The part of the Protocol Buffers wire format that etcd's messages use: protobuf.dev/encoding. */

/**
 * A message to send: values by the number of their field. Integers are from 0 to 2^53 - 1. A text
 * has one character for each byte.
 */
export interface Fields {
  readonly [number: number]: Value | readonly Value[]
}
type Value = number | string | Fields

// The wire types. etcd's messages have only the first two; fields of others are skipped.
const VARINT = 0
const LENGTH_DELIMITED = 2
const FIXED_BYTES: ReadonlyMap<number, number> = new Map([
  [1, 8],
  [5, 4],
])

/** The UTF-8 of a text, as this folder has keys and values: one character for each byte. */
export function binary(text: string): string {
  return Buffer.from(text).toString('latin1')
}

export function encode(message: Fields): Buffer {
  const parts: Buffer[] = []
  for (const [number, values] of Object.entries(message))
    for (const value of [values].flat()) parts.push(...encodeField(8 * Number(number), value))
  return Buffer.concat(parts)
}

function encodeField(tag: number, value: Value): readonly Buffer[] {
  if (typeof value === 'number') return [varint(tag + VARINT), varint(value)]
  const bytes = typeof value === 'string' ? Buffer.from(value, 'latin1') : encode(value)
  return [varint(tag + LENGTH_DELIMITED), varint(bytes.length), bytes]
}

/** A message that was received. A field that is left out is 0, or empty; the last one counts. */
export class Message {
  /** In bytes. */
  readonly length: number
  readonly #numbers: number[] = []
  /** In the order of their numbers above. */
  readonly #values: (number | Buffer)[] = []

  /** @throws Error if the bytes are no message. */
  constructor(bytes: Buffer) {
    this.length = bytes.length
    let at = 0
    const integer = (): number => {
      for (let value = 0, unit = 1; ; unit *= 128) {
        const byte = bytes[at++] ?? 0
        value += (byte % 128) * unit
        if (byte < 128) return value
      }
    }
    while (at < bytes.length) {
      const tag = integer()
      const type = tag % 8
      this.#numbers.push((tag - type) / 8)
      if (type === VARINT) this.#values.push(integer())
      else {
        const length = type === LENGTH_DELIMITED ? integer() : FIXED_BYTES.get(type)
        if (length === undefined) throw new Error('a message has a field of no known type')
        this.#values.push(bytes.subarray(at, at + length))
        at += length
      }
    }
    // Not ">": a length of many bytes is no number.
    if (at !== bytes.length) throw new Error('a message ends too early')
  }

  /** Above 2^53 it is not exact. */
  integer(field: number): number {
    const value = this.#last(field)
    return typeof value === 'number' ? value : 0
  }

  /** A copy, with one character for each byte. */
  text(field: number): string {
    const value = this.#last(field)
    return Buffer.isBuffer(value) ? value.toString('latin1') : ''
  }

  messages(field: number): readonly Message[] {
    const values = this.#values.filter((_, i) => this.#numbers[i] === field)
    return values.filter(Buffer.isBuffer).map((bytes) => new Message(bytes))
  }

  #last(field: number): number | Buffer | undefined {
    return this.#values[this.#numbers.lastIndexOf(field)]
  }
}

/** Seven bits a byte, the lowest first; the high bit says that another byte follows. */
function varint(value: number): Buffer {
  const bytes: number[] = []
  for (; value >= 128; value = Math.floor(value / 128)) bytes.push((value % 128) + 128)
  return Buffer.from([...bytes, value])
}
