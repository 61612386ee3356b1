import { METHODS } from 'node:http'
import { someId, someText, spellPlant, spoilBody } from './bodies.ts'
import { type Owner, SharedOwner } from './model.ts'
import type { Random } from './random.ts'

export type Tokens = readonly [string, ...string[]]

/** Whose tokens a connection may use. */
export interface Actors {
  readonly owners: readonly [Owner, ...Owner[]]
  readonly shared: readonly [SharedOwner, ...SharedOwner[]]
  /** Tokens that are good for less, or for nothing, by kind. */
  readonly others: readonly [Tokens, ...Tokens[]]
  readonly maxBodyBytes: number
}

const SHARED_IDS = 300
const JSON_TYPE = 'Content-Type: application/json'
const TYPES: readonly [string, ...string[]] = [
  'application/json; charset=utf-8',
  'Application/JSON',
  'application/json;charset="UTF-8"',
  'application/json; a=b',
  'application/json ;charset=UTF-8',
  'text/plain',
  'application/jsonx',
  'application/json; charset=latin1',
  'application/json, text/plain',
  '',
  '\xa0application/json',
  'application/json\xa0; a=b',
  'application/json; charset=utf-8; charset=ascii',
  'application/problem+json',
  'json',
  'application/json;',
  '*/*',
  'multipart/form-data; boundary=a',
  `application/json${';a=b'.repeat(300)}`,
]
const TARGETS: readonly [string, ...string[]] = [
  '/',
  '/plants/',
  '//plants',
  '/%70lants',
  '/Plants',
  '/plants%2f',
  '/plants;x',
  '*',
  '/livez',
  '/metrics',
  '/plants#',
  '/../plants',
  '/./plants',
  'http://a/plants',
  'https://[::1]:8/plants?limit=1',
  'http://a',
  'ftp://a/plants',
  'http://u@a/plants',
  'plants',
  '/plants\\',
  '/plants%00',
  'HTTP://A/plants',
  '/__proto__',
  '/plants\xe9',
]
const LINES: readonly [string, ...string[]] = [
  'Accept: */*',
  'Connection: keep-alive',
  'Connection: Keep-Alive, TE',
  'Connection: \xa0close',
  'Connection: close\x85',
  'X-Forwarded-For: 1.2.3.4',
  'Cookie: a=b',
  'Content-Encoding: identity',
  'Content-Encoding: gzip',
  'Content-Encoding: ',
  'Content-Encoding: identity, gzip',
  'Content-Encoding: \xa0identity',
  'Content-Encoding: identity\x85',
  'Request-Id: mine',
  'Request-Id: not mine',
  `Request-Id: ${'r'.repeat(129)}`,
  'Request-Id: \xe9',
  'Request-Id: "<>;',
  'Request-Id: a\r\nRequest-Id: b',
  'Host: b',
  'Authorization: Basic YTpi',
  'Content-Type: application/json',
  'Content-Length: 0',
  'Content-Length: 7',
  'Content-Length: 00',
  'Content-Length: +1',
  'Content-Length: 1, 1',
  'Content-Length: 0x1',
  'Content-Length:',
  'Content-Length: 18446744073709551615',
  'Content-Length: 99999',
  'Transfer-Encoding: identity',
  'Transfer-Encoding: gzip, chunked',
  'Transfer-Encoding: chunked, identity',
  'Transfer-Encoding: xchunked',
  'Transfer-Encoding : chunked',
  'Transfer-Encoding: "chunked"',
  'Transfer-Encoding: chunked;q=1',
  'Transfer-Encoding:\tchunked',
  'Expect: 100-continue',
  'Expect: 100-Continue',
  'Expect: 200-ok',
  'Expect: 100-continue\r\nExpect: 100-continue',
  'Expect: ',
  'Upgrade: h2c',
  'Connection: Upgrade\r\nUpgrade: websocket',
  'Trailer: X',
  'X:',
  'x: \t ',
  'X-\x80: a',
  ' X: folded',
  'X : a',
  ': a',
  'X',
  'X: a\0b',
  'X: a\x7fb',
  'X: \xff\xfe',
  'X: a\rb',
  'X: a\nY: b',
  'If-None-Match: *',
  'Range: bytes=0-1',
  'X-HTTP-Method-Override: DELETE',
  'Content-Length: 5\r\nTransfer-Encoding: chunked',
  'HTTP2-Settings: AAMA',
  'Keep-Alive: timeout=1',
]
const QUERIES: readonly [string, ...string[]] = [
  'limit=0',
  'limit=1',
  'limit=2',
  'limit=007',
  'limit=%31',
  'l%69mit=3',
  'limit=2147483647',
  'limit=2147483648',
  'limit=-1',
  'limit=+1',
  'limit=1.0',
  'limit=',
  'limit',
  'limit=1&limit=1',
  'limit=1&limi%74=2',
  'limit=%',
  'limit=1%00',
  'limit=00000000001',
  'limit=1;after=',
  'after=',
  'after=AQ',
  'after=x&after=x',
  'x=1',
  'x=%zz&limit=2',
  '&&limit=1&',
  '?limit=1',
  'limit==1',
  'Limit=-1',
  'limit=%D9%A1',
  'limit[]=-1',
  '+limit=x',
  'access_token=a',
]
const CONTROLS: readonly [string, ...string[]] = [
  'GARBAGE\r\n\r\n',
  '\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03',
  'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n',
  '\0',
  'GET',
  'GET /plants\r\n\r\n',
  'GET /plants HTTP/1.1',
  'get /plants HTTP/1.1\r\n\r\n',
  'GET /plants HTTP/1.1\r\nHost',
  '\r\n\r\n',
  'GET /plants HTTP/11\r\n\r\n',
  'GET  /plants HTTP/1.1\r\nHost: a\r\n\r\n',
  'GET /plants HTTP/1.1\nHost: a\n\n',
  'GET /plants HTTP/2.0\r\nHost: a\r\n\r\n',
  'CONNECT a:1 HTTP/1.1\r\nHost: a\r\n\r\n',
  'CONNECT a:1\r\n\r\n',
  'CONNECT /plants HTTP/2.0\r\nHost: a\r\n\r\n',
]

function authorization(random: Random, { owners, others }: Actors): string[] {
  const { token } = random.pick(owners)
  if (random.chance(0.9)) return [`Authorization: Bearer ${token}`]
  switch (random.below(10)) {
    case 0:
      return []
    case 1:
      return [
        `Authorization: Bearer ${token}`,
        `Authorization: Bearer ${random.pick(owners).token}`,
      ]
    case 2:
      return [
        `authorization:${random.pick([' ', '', '\t'])}${random.pick(['bearer', 'BEARER', 'Bearer '])} ${token} `,
      ]
    case 3:
      return [
        `Authorization: ${random.pick(['', 'Bearer', 'Basic', 'Bearer,', 'Bearer\t', 'Bearerx', 'Digest', '"Bearer"', 'Bearer='])} ${token}`,
      ]
    case 4:
      return [
        `Authorization: Bearer ${token}${random.pick([',', ' x', '=', '.', '\xe9', '.a', '%', '\t'])}`,
      ]
    case 5:
    case 6: {
      const at = random.below(token.length)
      return [
        `Authorization: Bearer ${token.slice(0, at)}${random.pick(['A', 'b', '_', '-', '.', '', '+', '/', '=', '~'])}${token.slice(at + 1)}`,
      ]
    }
    default:
      return [`Authorization: Bearer ${random.pick(random.pick(others))}`]
  }
}

function chunk(random: Random, body: string): string {
  let text = ''
  const spoil = random.chance(0.15)
  for (let at = 0; at < body.length; ) {
    const size = 1 + random.small(random.chance(0.2) ? 3 : 400)
    const piece = body.slice(at, at + size)
    at += size
    const written = piece.length.toString(16)
    text += random.chance(0.9)
      ? written
      : random.pick([
          written.toUpperCase(),
          `000${written}`,
          `${written};a`,
          `${written};a=b;c="d e"`,
          spoil
            ? random.pick([
                '',
                '-1',
                'g',
                ' 1',
                `${written} `,
                `0x${written}`,
                '1'.repeat(20),
                `${written};\n`,
                (piece.length + 1).toString(16),
                (piece.length - 1).toString(16),
                `${written};${'e'.repeat(random.below(20_000))}`,
              ])
            : written,
        ])
    text += `\r\n${piece}${spoil && random.chance(0.1) ? random.pick(['\n', '', '\r', 'x\r\n']) : '\r\n'}`
  }
  const trailers = random.chance(0.9)
    ? ''
    : random.pick([
        'X: a\r\n',
        'Authorization: Bearer a\r\nHost: b\r\n',
        'Content-Length: 4\r\n',
        'bad trailer\r\n',
        ' X: a\r\n',
        'X: a\0\r\n',
        `X: ${'t'.repeat(20_000)}\r\n`,
      ])
  return `${text}${random.chance(0.97) ? '0' : random.pick(['00', '0;a', '-0', ''])}\r\n${trailers}${random.chance(0.98) ? '\r\n' : ''}`
}

function withBody(random: Random, lines: string[], body: string): string {
  if (random.chance(0.12))
    return `${[...lines, 'Transfer-Encoding: chunked'].join('\r\n')}\r\n\r\n${chunk(random, body)}`
  const length = random.chance(0.985)
    ? body.length
    : random.pick([body.length + 1, Math.max(0, body.length - 1), 0, 70_000, 2 ** 31, '1e1', ''])
  lines.splice(random.below(lines.length - 1) + 1, 0, `Content-Length: ${length}`)
  return `${lines.join('\r\n')}\r\n\r\n${body}`
}

function create(random: Random, actors: Actors): string {
  const lines = ['POST /plants HTTP/1.1', 'Host: a', ...authorization(random, actors)]
  if (random.chance(0.97)) lines.push(JSON_TYPE)
  else if (random.chance(0.8)) lines.push(`Content-Type: ${random.pick(TYPES)}`)
  soup(random, lines, 0.04)
  const tagged = random.chance(0.4)
  const id = someId(random)
  // Few different plants under an id: the same again, and another one, are both usual.
  const name = random.chance(0.8)
    ? `${id} ${random.below(2)}`
    : someText(random, actors.maxBodyBytes / 8)
  const plant = tagged
    ? { name, tag: random.chance(0.7) ? 'indoor' : someText(random, 100) }
    : { name }
  const body = random.chance(0.72) ? spellPlant(random, id, plant) : spoilBody(random, id, plant)
  return withBody(
    random,
    lines,
    random.chance(0.004)
      ? body + ' '.repeat(Math.max(0, actors.maxBodyBytes - body.length + random.below(3) - 1))
      : body,
  )
}

function list(random: Random, actors: Actors): string {
  const owner = random.pick(actors.owners)
  const cursors = [...(random.chance(0.8) ? owner : random.pick(actors.owners)).cursors.keys()]
  const cursor = cursors[random.below(Math.max(1, cursors.length))]
  const after =
    cursor === undefined
      ? 'after=AbcDef_-'
      : `after=${random.chance(0.9) ? cursor : cursor.slice(0, -1) + random.pick(['A', 'B', 'g', 'w', ''])}`
  const query = random.chance(0.4)
    ? ''
    : random.chance(0.4)
      ? `?${random.pick(QUERIES)}`
      : random.chance(0.5)
        ? `?limit=${1 + random.small(9)}&${after}`
        : random.chance(0.3)
          ? `?${after}`
          : `?limit=${random.small(12)}`
  const lines = [
    `${random.chance(0.93) ? 'GET' : 'HEAD'} /plants${query} HTTP/1.1`,
    'Host: a',
    ...(random.chance(0.5)
      ? [`Authorization: Bearer ${owner.token}`]
      : authorization(random, actors)),
  ]
  soup(random, lines, 0.04)
  if (random.chance(0.97)) return `${lines.join('\r\n')}\r\n\r\n`
  return withBody(
    random,
    lines,
    'x'.repeat(random.chance(0.9) ? random.below(300) : 60_000 + random.below(12_000)),
  )
}

function odd(random: Random, actors: Actors): string {
  // Node knows some method.
  const methods = METHODS as [string, ...string[]]
  const method = random.chance(0.5)
    ? random.pick(methods)
    : random.pick(['GET', 'POST', 'HEAD', 'OPTIONS', 'PUT'])
  const target = random.chance(0.5)
    ? random.pick(TARGETS)
    : random.chance(0.97)
      ? '/plants'
      : `/plants?${'x'.repeat(random.pick([13_000, 15_800, 16_384, 20_000]))}`
  const lines = [
    `${method} ${target} HTTP/${random.chance(0.9) ? '1.1' : random.pick(['1.0', '1.0', '2.0', '0.9', '1.2', '9.9', '1', '1.11'])}`,
    ...(random.chance(0.93)
      ? [`Host: ${random.pick(['a', 'plants.test:80', '[::1]', '', 'a b', 'a/b', 'é', 'a,b'])}`]
      : []),
    ...authorization(random, actors),
  ]
  if (random.chance(0.2))
    lines.push(
      random.pick([
        'Connection: close',
        'Connection: keep-alive',
        'Connection: close, keep-alive',
        'Connection: CLOSE',
      ]),
    )
  soup(random, lines, 0.3)
  if (random.chance(0.1)) lines.push(`X: ${'h'.repeat(random.pick([100, 14_000, 16_000, 19_000]))}`)
  return random.chance(0.7)
    ? `${lines.join('\r\n')}\r\n\r\n`
    : withBody(random, lines, spellPlant(random, 1n, { name: 'odd' }))
}

function soup(random: Random, lines: string[], share: number): void {
  while (random.chance(share)) lines.splice(1 + random.below(lines.length), 0, random.pick(LINES))
}

function ofAll(random: Random, { shared }: Actors): string {
  const { token } = random.pick(shared)
  if (random.chance(0.3))
    return `GET /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n\r\n`
  const id = random.below(SHARED_IDS)
  const body = `{"id":${id},"name":${JSON.stringify(SharedOwner.plant(id).name)}}`
  return `POST /plants HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer ${token}\r\n${JSON_TYPE}\r\nContent-Length: ${body.length}\r\n\r\n${body}`
}

/**
 * One request, or what could pass for one. `withShared`: the shared owners' plants are nobody's to
 * change.
 */
export function someRequest(random: Random, actors: Actors, withShared: boolean): string {
  const kind = random.next()
  if (kind < 0.5) return create(random, actors)
  if (kind < 0.84) return list(random, actors)
  if (kind < 0.9) return withShared ? ofAll(random, actors) : list(random, actors)
  if (kind < 0.985) return odd(random, actors)
  return random.pick(CONTROLS)
}
