import type { Random } from './random.ts'

const PIECES: readonly [string, ...string[]] = [
  '\r',
  '\n',
  '\r\n',
  '\r\n\r\n',
  '\0',
  ' ',
  '\t',
  ':',
  ',',
  ';',
  '"',
  '\\',
  '{',
  '}',
  '[',
  ']',
  '\x7f',
  '\x80',
  '\xff',
  '0',
  '9',
  '-',
  '+',
  '.',
  'e',
  '%',
  '%00',
  '/',
  '//',
  '?',
  '#',
  '=',
  '&',
  '\x0b',
  '\x0c',
  '\x1b',
  '\x85',
  '\xa0',
  'HTTP/1.1',
  'HTTP/1.0',
  'GET ',
  'POST ',
  'HEAD ',
  'Content-Length: 5\r\n',
  'Transfer-Encoding: chunked\r\n',
  'Connection: close\r\n',
  'Host: a\r\n',
  'Authorization: Bearer a\r\n',
  'Expect: 100-continue\r\n',
  'chunked',
  '0\r\n\r\n',
  ' \r\n',
  '\n\n',
  'ffffffff',
  '/plants',
]

/** A few changes that know nothing of what they change. */
export function mutate(random: Random, text: string): string {
  let result = text
  for (let times = 1 + random.small(4); times > 0; times--) {
    const at = random.below(result.length + 1)
    const length = 1 + random.small(Math.max(1, Math.min(result.length - at, 60)))
    const [before, after] = [result.slice(0, at), result.slice(at)]
    switch (random.below(8)) {
      case 0:
        result =
          before +
          String.fromCharCode((result.charCodeAt(at) || 0) ^ (1 << random.below(8))) +
          after.slice(1)
        break
      case 1:
        result = before + String.fromCharCode(random.below(256)) + after.slice(1)
        break
      case 2:
        result = before + after.slice(length)
        break
      case 3:
        result = before + after.slice(0, length) + after
        break
      case 4:
        result = before + random.pick(PIECES) + after.slice(1)
        break
      case 5:
        result = before + result.slice(random.below(result.length + 1)).slice(0, length) + after
        break
      case 6:
        result = random.chance(0.2) ? before : before + after.slice(1)
        break
      default:
        result = before + random.pick(PIECES) + after
    }
  }
  return result
}
