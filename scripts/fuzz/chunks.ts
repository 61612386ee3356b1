import type { Random } from '../../test/support/random.ts'
import { dictionary } from './dictionary.ts'

const TRAILERS = [...dictionary.trailers, `X: ${'t'.repeat(20_000)}\r\n`] as const

/** A body in chunked coding (RFC 9112 §7.1), spelt in one of many ways, and sometimes wrongly. */
export function chunk(random: Random, body: string): string {
  let text = ''
  const spoil = random.chance(0.15)
  for (let at = 0; at < body.length; ) {
    const size = 1 + random.small(random.chance(0.2) ? 3 : 400)
    const piece = body.slice(at, at + size)
    at += size
    const end = spoil && random.chance(0.1) ? random.pick(['\n', '', '\r', 'x\r\n']) : '\r\n'
    text += `${sizeText(random, piece.length, spoil)}\r\n${piece}${end}`
  }
  const last = random.chance(0.97) ? '0' : random.pick(['00', '0;a', '-0', ''])
  const trailers = random.chance(0.9) ? '' : random.pick(TRAILERS)
  return `${text}${last}\r\n${trailers}${random.chance(0.98) ? '\r\n' : ''}`
}

function sizeText(random: Random, size: number, spoil: boolean): string {
  const hex = size.toString(16)
  if (random.chance(0.9)) return hex
  const good = [hex, hex.toUpperCase(), `000${hex}`, `${hex};a`, `${hex};a=b;c="d e"`] as const
  if (!spoil || random.chance(0.8)) return random.pick(good)
  const wrong = [size + 1, size - 1].map((other) => other.toString(16))
  const long = `${hex};${'e'.repeat(random.below(20_000))}`
  return random.pick([...dictionary.chunkSizes, `${hex} `, `0x${hex}`, `${hex};\n`, long, ...wrong])
}
