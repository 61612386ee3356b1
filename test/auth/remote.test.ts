import assert from 'node:assert/strict'
import type { RequestListener } from 'node:http'
import { after, type TestContext, test } from 'node:test'
import { setTimeout as delay } from 'node:timers/promises'
import { type KeySource, TIMING } from '../../dist/auth/key-source.js'
import { logOf, silent } from '../support/log.ts'
import { collect } from '../support/memory.ts'
import { serving } from '../support/serving.ts'
import { PATIENCE_MS, stopClock, until } from '../support/time.ts'
import { accepted, claims, createKeySource, jwk, type Members, p256, p521 } from './tokens.ts'
import { type PatientVerifier, refused, rsa, rsa2, signed, verifier } from './tokens.ts'

/** Nothing happens by itself during a test, unless the test shortens a time. */
const SLOW = { ...TIMING, fetch: 600_000, retry: 600_000, refill: 600_000 }
/** Each request may fetch. */
const EAGER: Partial<typeof TIMING> = { refill: 0 }
const MIB = 1024 * 1024

const ONE = jwk(rsa.publicKey, { kid: 'one' })
const TWO = jwk(rsa2.publicKey, { kid: 'two' })
const tokenOne = signed('RS256', rsa.privateKey, { kid: 'one' })
const tokenTwo = signed('RS256', rsa2.privateKey, { kid: 'two' })

const unhandled: unknown[] = []
process.on('unhandledRejection', (reason) => unhandled.push(reason))
after(() => assert.deepEqual(unhandled, []))

/** A real HTTP server; a test may change `answer` while it runs. */
interface Issuer {
  readonly url: string
  readonly paths: readonly string[]
  answer: RequestListener
}

async function openIssuer(t: TestContext, answer: RequestListener = () => {}): Promise<Issuer> {
  const paths: string[] = []
  const url = await serving(t, (request, response) => {
    paths.push(request.url ?? '')
    issuer.answer(request, response)
  })
  const issuer = { url, paths, answer }
  return issuer
}

function keySet(...keys: readonly Members[]): RequestListener {
  return text(JSON.stringify({ keys }))
}

function text(body: string, status = 200, location?: string): RequestListener {
  return (_, response) => {
    if (location !== undefined) response.setHeader('Location', location)
    response.writeHead(status).end(body)
  }
}

const failing = text('', 500)

interface Setting {
  readonly keys: KeySource
  readonly by: PatientVerifier
  /** Lines of the log, without those of a key set that was read. */
  readonly errors: readonly string[]
}

/** Keys from this URL, or those that an issuer's discovery document names. */
function keysOf(t: TestContext, from: { url: string } | { issuer: string }, timing = {}): Setting {
  const errors: string[] = []
  const log = logOf((level, message, fields) => {
    if (level === 'error') errors.push(`${message}: ${Object.values(fields ?? {})}`)
  })
  const settings = 'url' in from ? { issuer: 'no URL', jwksUrl: from.url } : from
  const keys = createKeySource(settings, log, { ...SLOW, ...timing })
  t.after(() => keys.close())
  return { keys, by: verifier(keys), errors }
}

async function withIssuer(
  t: TestContext,
  answer: RequestListener,
  timing: Partial<typeof TIMING> = {},
): Promise<Setting & { readonly issuer: Issuer; hits(): number }> {
  const issuer = await openIssuer(t, answer)
  const url = `${issuer.url}/jwks?code=hidden#hidden`
  return { issuer, hits: () => issuer.paths.length, ...keysOf(t, { url }, timing) }
}

/** Why there are no keys; "" if there are some. */
function absence(keys: KeySource): string {
  return String(keys.unavailable?.message ?? '')
}

/** The reason why there are no keys, which the log has too: it says so, and shows no secret. */
function absentBecause({ keys, errors }: Setting, why: RegExp): void {
  for (const told of [absence(keys), errors.join()]) {
    assert.match(told, why)
    assert(!told.includes('hidden'), told)
  }
}

async function cacheToken(by: PatientVerifier, text: string): Promise<void> {
  await accepted(text, by)
  assert(!(by.verify(text) instanceof Promise))
}

test('remote keys: without keys 503, and 401 for a malformed token', async (t) => {
  const { by } = await withIssuer(t, failing)
  await refused(tokenOne, 'keysUnavailable', by)
  const [header, , signature] = tokenOne.split('.')
  const empty = [`${header}..${signature}`, `${header}._w.${signature}`, `${tokenOne}.a`]
  for (const one of [...empty, tokenOne.replace(/[^.]*$/, '')])
    await refused(one, 'tokenInvalid', by)
})

for (const type of ['application/jwk-set+json', 'application/json', 'text/plain']) {
  test(`remote keys: an issuer that has ${type} alone is asked for it`, async (t) => {
    const has = keySet(ONE)
    const { by } = await withIssuer(t, (request, response) => {
      const ranges = (request.headers.accept ?? '').split(',').map((range) => range.trim())
      const isAccepted = ranges.some((range) => range === type || range.startsWith('*/*;'))
      if (isAccepted) has(request, response)
      else response.writeHead(406).end()
      // What is named comes before what is only taken.
      assert.match(ranges.at(-1) ?? '', /^\*\/\*;q=0\.1$/)
    })
    await accepted(tokenOne, by)
  })
}

test('remote keys: a malformed token does not wait for keys', async (t) => {
  const { hits, keys, by } = await withIssuer(t, () => {})
  keys.start()
  await until('asked', () => hits() === 1)
  // Nothing ends this fetch before the test does.
  for (const one of ['a.b.c', 'a', tokenOne.slice(1)]) await refused(one, 'tokenInvalid', by)
})

const SET = JSON.stringify({ keys: [ONE] })
const half: RequestListener = (_, response) => {
  response.writeHead(200, { 'Content-Length': '100000' })
  response.write(SET, () => response.destroy())
}

const SYMMETRIC = { kty: 'oct', k: Buffer.alloc(32).toString('base64url'), kid: 'one' }
const NO_SET = 'must be a JSON Web Key Set, {"keys": \\[...\\]}, and'
const BAD_ANSWERS: readonly (readonly [what: string, answer: RequestListener, why: string])[] = [
  ['a status of 500 with a good body', text(SET, 500), 'answered 500'],
  ['a status of 203', text(SET, 203), 'answered 203'],
  ['a 503 without an end', (_, response) => response.writeHead(503).write('x'), 'answered 503'],
  ['a status of 204', text('', 204), 'answered 204'],
  ['a redirect', text('', 302, '/moved?code=hidden'), 'fetch failed: unexpected redirect'],
  ['garbage', text('code=hidden'), `${NO_SET} is no JSON object in UTF-8`],
  ['no key set', text(JSON.stringify(ONE)), `${NO_SET} has no list of keys`],
  ['one byte over 1 MiB', text(SET.padEnd(MIB + 1)), 'answered more than 1048576 bytes'],
  ['no key', keySet(), 'no key that can verify'],
  ['keys of other kinds only', keySet({ ...ONE, use: 'enc' }, { kty: 'AKP' }), 'no key that can'],
  ['a symmetric key', keySet(SYMMETRIC), 'no key that can verify'],
  ['a private key', keySet(jwk(rsa.privateKey, { kid: 'one' })), 'no key that can verify'],
  ['no answer', (_, response) => response.destroy(), 'fetch failed: '],
  ['half of what was announced', half, ''],
]

for (const [what, answer, why] of BAD_ANSWERS) {
  const title = `remote keys: ${what} does not replace a good key set`
  test(title, { timeout: PATIENCE_MS }, async (t) => {
    const setting = await withIssuer(t, answer, EAGER)
    const { issuer, hits, keys, by } = setting
    await refused(tokenOne, 'keysUnavailable', by)
    absentBecause(setting, new RegExp(`${issuer.url}/jwks: .*(?:${why})`))
    issuer.answer = keySet(ONE)
    await cacheToken(by, tokenOne)
    const { keys: good } = keys
    issuer.answer = answer
    // An unknown key fetches again; the earlier set still refuses it.
    const before = hits()
    await refused(tokenTwo, 'tokenInvalid', by)
    assert(hits() > before)
    assert(!(by.verify(tokenOne) instanceof Promise))
    assert.equal(keys.keys, good)
  })
}

test('remote keys: a key set of exactly 1 MiB is read', async (t) => {
  const { by } = await withIssuer(t, text(SET.padEnd(MIB)))
  await accepted(tokenOne, by)
})

test('remote keys: an endless key set is not read to its end', async (t) => {
  let sent = 0
  let gone = false
  const { by } = await withIssuer(t, (_, response) => {
    const chunk = Buffer.alloc(64 * 1024, ' ')
    const more = (): void => {
      while (!gone && response.write(chunk)) sent += chunk.length
    }
    response.on('drain', more).on('close', () => (gone = true))
    more()
  })
  await refused(tokenOne, 'keysUnavailable', by)
  await until('the connection is closed', () => gone)
  assert(sent < 16 * MIB)
})

const SILENCES: readonly (readonly [what: string, answer: RequestListener])[] = [
  ['at once', () => {}],
  ['in its body', (_, response) => response.writeHead(200).write('{"keys":[')],
]

for (const [when, silence] of SILENCES) {
  const title = `remote keys: an issuer that is silent ${when} is left after the fetch timeout`
  test(title, { timeout: PATIENCE_MS }, async (t) => {
    const setting = await withIssuer(t, silence, { fetch: 100 })
    const started = performance.now()
    // What only the garbage collector can reach must not be needed for the timeout.
    const collecting = setInterval(collect, 10)
    t.after(() => clearInterval(collecting))
    // Nothing else ends the wait.
    await refused(tokenOne, 'keysUnavailable', setting.by)
    const waited = performance.now() - started
    assert(waited > 90, String(waited))
    absentBecause(setting, /within 100 ms/)
  })
}

const CASES = [
  ['without a set', failing, failing, 'keysUnavailable'],
  ['with a set that lacks the key', keySet(ONE), keySet(ONE), 'tokenInvalid'],
  ['with a stale set', keySet(ONE), failing, 'tokenInvalid'],
] as const

for (const [what, first, later, condition] of CASES) {
  test(`remote keys: ${what}, requests fetch three times, then once in 30 s`, async (t) => {
    assert.equal(TIMING.refill, 30_000)
    const clock = stopClock(t)
    const { issuer, hits, keys, by } = await withIssuer(t, first, { usable: 1e9 })
    keys.start()
    // It does not count.
    const hasEnded = (): boolean => keys.keys !== undefined || keys.isStale === true
    await until('the first attempt has ended', hasEnded)
    issuer.answer = later
    for (const [passedMs, count] of [
      [0, 1 + 3],
      [SLOW.refill - 1, 1 + 3],
      [1, 1 + 4],
      [SLOW.refill, 1 + 5],
      [10 * SLOW.refill, 1 + 5 + 3],
    ] as const) {
      clock.pass(passedMs)
      const each = () => refused(tokenTwo, condition, by)
      for (let n = 0; n < 20; n++) await each()
      await Promise.all(Array.from({ length: 20 }, each))
      assert.equal(hits(), count, `after ${passedMs} ms`)
    }
  })
}

test('remote keys: Retry-After is the delay, which grows until a set is fetched', async (t) => {
  const clock = stopClock(t)
  const { issuer, by } = await withIssuer(t, failing, { retry: 2_000, refill: 5_000 })
  const delaysAre = async (...seconds: readonly number[]): Promise<void> => {
    for (const retrySeconds of seconds) {
      clock.pass(5_000)
      await assert.rejects(async () => by.verify(tokenOne), { retrySeconds })
    }
  }
  await delaysAre(2, 4, 5, 5)
  issuer.answer = keySet(ONE)
  clock.pass(5_000)
  await accepted(tokenOne, by)
  issuer.answer = failing
  clock.pass(SLOW.usable)
  await delaysAre(2, 4)
})

test('remote keys: an unknown kid finds a new key at once, with one fetch', async (t) => {
  stopClock(t)
  const { issuer, hits, keys, by } = await withIssuer(t, keySet(ONE))
  await cacheToken(by, tokenOne)
  issuer.answer = keySet(TWO)
  const { keys: before } = keys
  await Promise.all(Array.from({ length: 10 }, () => accepted(tokenTwo, by)))
  assert.equal(hits(), 2)
  assert.notEqual(keys.keys, before)
  await Promise.all(Array.from({ length: 10 }, () => refused(tokenOne, 'tokenInvalid', by)))
  assert.equal(hits(), 3)
})

test('remote keys: a fetch for a token takes the place of the next refresh', async (t) => {
  const made = t.mock.method(globalThis, 'setTimeout')
  const cleared = t.mock.method(globalThis, 'clearTimeout')
  const refresh = 54_321
  const { by } = await withIssuer(t, keySet(ONE), { ...EAGER, refresh })
  await accepted(tokenOne, by)
  await refused(tokenTwo, 'tokenInvalid', by)
  const timers = made.mock.calls.filter((each) => each.arguments[1] === refresh)
  const ended = cleared.mock.calls.map((each) => each.arguments[0] as unknown)
  const areEnded = timers.map(({ result }) => ended.includes(result))
  assert.deepEqual(areEnded, [true, false])
})

test('remote keys: a token whose kid is known, or that has none, fetches nothing', async (t) => {
  const { hits, by } = await withIssuer(t, keySet(ONE, TWO), EAGER)
  await accepted(tokenOne, by)
  await refused(signed('ES256', p256.privateKey, { kid: 'two' }), 'tokenInvalid', by)
  for (const kid of [2, null, ['three']])
    await refused(signed('RS256', rsa.privateKey, { kid }), 'tokenInvalid', by)
  await accepted(signed('RS256', rsa.privateKey), by)
  assert.equal(hits(), 1)
})

test('remote keys: without the issuer the set is used until it is too old', async (t) => {
  const clock = stopClock(t)
  const { issuer, hits, keys, by } = await withIssuer(t, keySet(ONE), { refresh: 10 })
  keys.start()
  await cacheToken(by, tokenOne)
  issuer.answer = failing
  const before = hits()
  assert.equal(keys.isStale, false)
  await until('refreshing fails', () => hits() > before + 2)
  assert.equal(keys.isStale, true)
  assert(!(by.verify(tokenOne) instanceof Promise))
  await refused(tokenTwo, 'tokenInvalid', by)
  clock.pass(SLOW.usable - 1)
  assert.equal(absence(keys), '')
  clock.pass(1)
  assert.notEqual(absence(keys), '')
  for (const one of [tokenOne, tokenTwo]) await refused(one, 'keysUnavailable', by)
})

test('remote keys: close ends a fetch under way and all later ones', async (t) => {
  const { hits, keys, by, errors } = await withIssuer(t, () => {}, { retry: 1, refill: 1 })
  const waiting = refused(tokenOne, 'keysUnavailable', by)
  await until('asked', () => hits() === 1)
  keys.close()
  // Nothing else ends the wait.
  await waiting
  await delay(30)
  await refused(tokenOne, 'keysUnavailable', by)
  assert.equal(hits(), 1)
  assert.deepEqual(errors, [])
})

for (const refresh of [20, 600_000]) {
  test(`remote keys: refreshed every ${refresh} ms, a set is fetched before its end`, async (t) => {
    const clock = stopClock(t)
    const { issuer, hits, keys, by } = await withIssuer(t, keySet(ONE), { usable: 50, refresh })
    await accepted(tokenOne, by)
    const { keys: first } = keys
    // The clock is stopped, so none of these is too late.
    await until('fetched before its end', () => hits() > 1)
    // One fetch may have begun before the clock moves, and one may be under way.
    const fetched = hits() + 3
    clock.pass(30)
    await until('fetched again', () => hits() >= fetched)
    clock.pass(30)
    assert.equal(keys.keys, first)
    issuer.answer = failing
    await until('fails before its end', () => keys.isStale === true)
    assert.equal(absence(keys), '')
    clock.pass(50)
    assert.match(absence(keys), /500/)
    await refused(tokenOne, 'keysUnavailable', by)
  })
}

test('remote keys: the background keeps no process alive', async (t) => {
  const { keys } = keysOf(t, { url: 'http://127.0.0.1:9/' })
  const count = (): number =>
    process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const before = count()
  keys.start()
  assert(count() <= before)
  const untried = absence(keys)
  await until('tried', () => absence(keys) !== untried)
  assert(count() <= before)
})

test('remote keys: during a fetch, tokens of known keys are verified', async (t) => {
  const known = jwk(p521.publicKey, { kid: 'known' })
  const { issuer, hits, keys, by } = await withIssuer(t, keySet(known), EAGER)
  keys.start()
  await until('fetched', () => keys.keys !== undefined)
  let answer = (): void => {}
  issuer.answer = (request, response) => (answer = () => keySet(known, ONE)(request, response))
  const waiting = [1, 2, 3].map((jti) => {
    return accepted(signed('RS256', rsa.privateKey, { kid: 'one' }, claims({ jti })), by)
  })
  await until('asked', () => hits() === 2)
  await accepted(signed('ES512', p521.privateKey, { kid: 'known' }), by)
  answer()
  await Promise.all(waiting)
})

/** What a discovery document says, or its text. */
type Document = (issuerUrl: string) => object | string

/** An issuer with this document, and with a key set at /jwks. */
async function discovering(t: TestContext, document: Document): Promise<Issuer> {
  const issuer = await openIssuer(t)
  const found = document(issuer.url)
  const page = text(typeof found === 'string' ? found : JSON.stringify(found))
  issuer.answer = (request, response) =>
    (request.url?.endsWith('/jwks') ? keySet(ONE) : page)(request, response)
  return issuer
}

const SUFFIXES = [
  ['', ''],
  ['/', ''],
  ['/realms/x', '/realms/x'],
  ['/realms/x/', '/realms/x'],
  ['//', '/'],
] as const

for (const [suffix, path] of SUFFIXES) {
  test(`discovery: an issuer ending in "${suffix}" is asked at ${path}/.well-known`, async (t) => {
    const document: Document = (url) => ({ issuer: url + suffix, jwks_uri: `${url}/jwks` })
    const { url, paths } = await discovering(t, document)
    await accepted(tokenOne, keysOf(t, { issuer: url + suffix }, { refresh: 30 }).by)
    const documentPath = `${path}/.well-known/openid-configuration`
    assert.deepEqual(paths.slice(0, 2), [documentPath, '/jwks'])
    const fetched = (): number => paths.filter((one) => one === documentPath).length
    await until('discovered again', () => fetched() > 1)
  })
}

const keysAt = (url: string): { readonly jwks_uri: string } => ({ jwks_uri: `${url}/jwks` })
const NO_KEYS_URL = 'names a jwks_uri that must be an https URL, or http on'
/** On Linux 0.0.0.0 is this machine: the good keys would be found there. */
const OF_ANY_HOST: Document = (url) => ({
  issuer: url,
  ...keysAt(url.replace('127.0.0.1', '0.0.0.0')),
})
const LONG = 'x'.repeat(500_000)
const DEEP = `${'['.repeat(100_000)}${']'.repeat(100_000)}`

const BAD_DOCUMENTS: readonly (readonly [what: string, document: Document, why: string])[] = [
  ['another issuer', (url) => ({ issuer: 'https://x', ...keysAt(url) }), 'another issuer: https'],
  ['a slash more', (url) => ({ issuer: `${url}/`, ...keysAt(url) }), 'is of another issuer: '],
  ['no issuer', keysAt, 'is of another issuer: none'],
  ['a list of issuers', (url) => ({ issuer: [url], ...keysAt(url) }), 'of another issuer: none'],
  ['no jwks_uri', (url) => ({ issuer: url }), NO_KEYS_URL],
  ['a relative jwks_uri', (url) => ({ issuer: url, jwks_uri: '/jwks' }), NO_KEYS_URL],
  ['a jwks_uri over plain http', OF_ANY_HOST, `${NO_KEYS_URL}.*\\(with keysOverHttp=anywhere`],
  ['keys in the jwks_uri', (url) => ({ issuer: url, jwks_uri: `data:,${SET}` }), NO_KEYS_URL],
  ['a list', (url) => [{ issuer: url, ...keysAt(url) }], 'must be an OpenID discovery document'],
  ['a page', () => '<!doctype html>', 'must be an OpenID discovery document, and is HTML or XML'],
  ['a long issuer', () => ({ issuer: LONG }), 'is of another issuer: x'],
  ['a deep issuer', () => `{"issuer":${DEEP}}`, 'of another issuer: none|no JSON object'],
  ['a query', (url) => ({ issuer: url, jwks_uri: `${url}/k?code=hidden` }), '/k: must be a JSON W'],
  ['a long URL', (url) => ({ issuer: url, jwks_uri: `${url}/${LONG}` }), 'x: answered|fetch'],
  ['a long host', (url) => ({ issuer: url, jwks_uri: `https://${LONG}` }), 'x: fetch failed|names'],
]

for (const [what, document, why] of BAD_DOCUMENTS) {
  test(`discovery: ${what} is refused, and the reason is short`, async (t) => {
    const { url, paths } = await discovering(t, document)
    const setting = keysOf(t, { issuer: url })
    await refused(tokenOne, 'keysUnavailable', setting.by)
    assert(!paths.includes('/jwks'))
    absentBecause(setting, new RegExp(why))
    for (const line of [absence(setting.keys), ...setting.errors])
      assert(line.length < 500 && !line.includes('call stack'), line.slice(0, 1000))
  })
}

test('discovery: with http anywhere, the jwks_uri may be http on any host', async (t) => {
  const { url } = await discovering(t, OF_ANY_HOST)
  const keys = createKeySource({ issuer: url, keysOverHttp: 'anywhere' }, silent, SLOW)
  t.after(() => keys.close())
  await accepted(tokenOne, verifier(keys))
})
