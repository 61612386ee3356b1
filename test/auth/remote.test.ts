import assert from 'node:assert/strict'
import type { RequestListener } from 'node:http'
import { after, type TestContext, test } from 'node:test'
import { setFlagsFromString } from 'node:v8'
import { runInNewContext } from 'node:vm'
import type { KeyConfig } from '../../dist/auth/keys.js'
import { type KeySource, type Timing, TIMING } from '../../dist/auth/key-source.js'
import { HttpError } from '../../dist/errors.js'
import { logOf, silent } from '../support/log.ts'
import { serving } from '../support/serving.ts'
import { PATIENCE_MS, stopClock, until } from '../support/time.ts'
import {
  accepted,
  claims,
  createKeySource,
  ed25519,
  jwk,
  type Members,
  p256,
  p521,
  type PatientVerifier,
  pause,
  refused,
  rsa,
  rsa2,
  signed,
  verifier,
} from './tokens.ts'

/** Nothing happens by itself during a test, unless the test shortens a time. */
const SLOW: Timing = { ...TIMING, fetch: 600_000, retry: 600_000, refill: 600_000 }
/** Each request may fetch. */
const EAGER: Partial<Timing> = { refill: 0 }

const ONE = jwk(rsa.publicKey, { kid: 'one' })
const TWO = jwk(rsa2.publicKey, { kid: 'two' })
const tokenOne = signed('RS256', rsa.privateKey, { kid: 'one' })
const tokenTwo = signed('RS256', rsa2.privateKey, { kid: 'two' })

const unhandled: unknown[] = []
process.on('unhandledRejection', (reason) => unhandled.push(reason))
after(() => {
  assert.deepEqual(unhandled, [])
})

/** A real HTTP server; a test may change `answer` while it runs. */
interface Issuer {
  readonly url: string
  readonly paths: readonly string[]
  readonly hits: number
  answer: RequestListener
}

async function openIssuer(t: TestContext, answer: RequestListener = () => {}): Promise<Issuer> {
  const paths: string[] = []
  const url = await serving(t, (request, response) => {
    paths.push(request.url ?? '')
    issuer.answer(request, response)
  })
  const issuer = {
    url,
    paths,
    answer,
    get hits() {
      return paths.length
    },
  }
  return issuer
}

function keySet(...keys: readonly Members[]): RequestListener {
  return text(JSON.stringify({ keys }))
}

function text(
  body: string | Uint8Array,
  status = 200,
  headers: Readonly<Record<string, string>> = {},
): RequestListener {
  return (_, response) => {
    response.writeHead(status, headers).end(body)
  }
}

interface Setting {
  readonly issuer: Issuer
  readonly keys: KeySource
  readonly by: PatientVerifier
  readonly errors: readonly string[]
}

async function withIssuer(
  t: TestContext,
  answer: RequestListener,
  timing: Partial<Timing> = {},
): Promise<Setting> {
  const issuer = await openIssuer(t, answer)
  const errors: string[] = []
  const log = logOf((level, message, fields) => {
    if (level === 'error') errors.push(`${message} ${JSON.stringify(fields)}`)
  })
  const config = { kind: 'url', url: `${issuer.url}/jwks` } as const
  const keys = createKeySource(config, 'https://x.example', log, { ...SLOW, ...timing })
  t.after(() => keys.close?.())
  return { issuer, keys, by: verifier(keys), errors }
}

/** Why there are no keys; "" if there are some. */
function absence(keys: KeySource): string {
  return String(keys.unavailable?.cause ?? '')
}

async function cacheToken(by: PatientVerifier, text: string): Promise<void> {
  await accepted(text, by)
  assert(!(by.verify(text) instanceof Promise))
}

test('remote keys: start fetches at once; all waiting requests share one fetch', async (t) => {
  const { issuer, keys, by } = await withIssuer(t, keySet(ONE))
  assert.notEqual(absence(keys), '')
  keys.start?.()
  await Promise.all([tokenOne, tokenOne, tokenOne].map((one) => accepted(one, by)))
  assert.equal(absence(keys), '')
  assert.equal(issuer.hits, 1)
})

test('remote keys: without keys 503, and 401 for a malformed token', async (t) => {
  const { keys, by, errors } = await withIssuer(t, text('', 500))
  await refused(tokenOne, 'keysUnavailable', by)
  const [header, , signature] = tokenOne.split('.')
  const parts = [
    `${header}..${signature}`,
    `${header}._w.${signature}`,
    tokenOne.replace(/[^.]*$/, ''),
  ]
  const malformed = ['a.b.c', `${tokenOne}.a`, ...parts]
  for (const one of malformed) await refused(one, 'tokenInvalid', by)
  assert.match(absence(keys), /500/)
  assert.match(errors[0] ?? '', /500/)
})

test('remote keys: a malformed token does not wait for keys', async (t) => {
  const { issuer, keys, by } = await withIssuer(t, () => {})
  keys.start?.()
  await until('asked', () => issuer.hits === 1)
  // Nothing ends this fetch before the test does.
  for (const one of ['a.b.c', 'a', tokenOne.slice(1)]) await refused(one, 'tokenInvalid', by)
})

const MIB = 1024 * 1024

setFlagsFromString('--expose-gc')
// What the flag adds to every new context.
const collect = runInNewContext('gc') as () => void
const BAD_ANSWERS: Readonly<Record<string, RequestListener>> = {
  'a status of 500 with a good body': text(JSON.stringify({ keys: [ONE] }), 500),
  'a status of 203': text(JSON.stringify({ keys: [ONE] }), 203),
  'a status of 204': (_, response) => response.writeHead(204).end(),
  'a redirect': (request, response) => {
    if (request.url === '/jwks') response.writeHead(302, { Location: '/moved' }).end()
    else keySet(ONE)(request, response)
  },
  garbage: text('<html>'),
  'no key set': text(JSON.stringify(ONE)),
  'keys that are no array': text('{"keys":{}}'),
  'bytes that are not UTF-8': text(
    Buffer.from(`{"keys":[${JSON.stringify(ONE)}],"x":"\xff"}`, 'latin1'),
  ),
  'one byte over 1 MiB': text(JSON.stringify({ keys: [ONE] }).padEnd(MIB + 1)),
  'half of what was announced': (_, response) => {
    response.writeHead(200, { 'Content-Length': '100000' }).write(JSON.stringify({ keys: [ONE] }))
    setTimeout(() => response.destroy(), 10)
  },
  'no key': keySet(),
  'keys of other kinds only': keySet({ ...ONE, use: 'enc' }, { kty: 'AKP', kid: 'one' }),
  'a symmetric key': keySet({ kty: 'oct', k: Buffer.alloc(32).toString('base64url'), kid: 'one' }),
  'a private key': keySet(jwk(rsa.privateKey, { kid: 'one' })),
}

for (const [name, answer] of Object.entries(BAD_ANSWERS)) {
  test(`remote keys: ${name} does not replace a good key set`, async (t) => {
    const { issuer, keys, by } = await withIssuer(t, answer, EAGER)
    await refused(tokenOne, 'keysUnavailable', by)
    issuer.answer = keySet(ONE)
    await cacheToken(by, tokenOne)
    const { keys: good } = keys
    issuer.answer = answer
    // An unknown key fetches again; the earlier set still refuses it.
    const hits = issuer.hits
    await refused(tokenTwo, 'tokenInvalid', by)
    assert(issuer.hits > hits)
    assert(!(by.verify(tokenOne) instanceof Promise))
    assert.equal(keys.keys, good)
  })
}

test('remote keys: a key set of exactly 1 MiB is read', async (t) => {
  const { by } = await withIssuer(t, text(JSON.stringify({ keys: [ONE] }).padEnd(MIB)))
  await accepted(tokenOne, by)
})
test('remote keys: an endless key set is not read to its end', async (t) => {
  let sent = 0
  let gone = false
  const endless: RequestListener = (_, response) => {
    const chunk = Buffer.alloc(64 * 1024, ' ')
    const more = (): void => {
      while (!gone && response.write(chunk)) sent += chunk.length
    }
    response.on('drain', more).on('close', () => (gone = true))
    more()
  }
  const { by } = await withIssuer(t, endless)
  await refused(tokenOne, 'keysUnavailable', by)
  await until('the connection is closed', () => gone)
  assert(sent < 16 * MIB)
})

test(
  'remote keys: a silent issuer is left after the fetch timeout',
  { timeout: PATIENCE_MS },
  async (t) => {
    const silences: readonly RequestListener[] = [
      () => {},
      (_, response) => response.writeHead(200).write('{"keys":['),
    ]
    for (const silence of silences) {
      const { keys, by } = await withIssuer(t, silence, { fetch: 100 })
      const started = performance.now()
      // What only the garbage collector can reach must not be needed for the timeout.
      const collecting = setInterval(collect, 10)
      t.after(() => clearInterval(collecting))
      // Nothing else ends the wait.
      await refused(tokenOne, 'keysUnavailable', by)
      clearInterval(collecting)
      const waited = performance.now() - started
      assert(waited > 90, String(waited))
      assert.match(absence(keys), /within 100 ms/)
    }
  },
)

test('remote keys: every failure of a fetch names the URL', async (t) => {
  const issuer = await openIssuer(t)
  const secure = issuer.url.replace('http', 'https')
  const failures: readonly (readonly [url: string, answer: RequestListener, why: RegExp])[] = [
    // TLS to a server that has none.
    [secure, () => {}, /fetch failed: .*(?:SSL|ssl|EPROTO)/],
    ['http://127.0.0.1:1', () => {}, /fetch failed: connect ECONNREFUSED|fetch failed: bad port/],
    [issuer.url, text('', 302, { Location: '/x' }), /fetch failed: unexpected redirect/],
    [issuer.url, text('', 404), /answered 404/],
    [issuer.url, text('{}'), /no list of keys/],
    [issuer.url, keySet(), /no key that can verify/],
    [issuer.url, (_, response) => response.destroy(), /fetch failed: /],
  ]
  for (const [url, answer, why] of failures) {
    issuer.answer = answer
    const lines: string[] = []
    const log = logOf((_, message, fields) => lines.push(`${message} ${JSON.stringify(fields)}`))
    const keys = createKeySource({ kind: 'url', url: `${url}/a?code=x` }, url, log, SLOW)
    await refused(tokenOne, 'keysUnavailable', verifier(keys))
    keys.close?.()
    for (const told of [absence(keys), lines.join()]) {
      assert.match(told, why)
      assert.ok(told.includes(`${url}/a: `), told)
    }
  }
})

test('remote keys: a page instead of a document is told with its URL', async (t) => {
  const page = text('<!doctype html>')
  const issuer = await openIssuer(t, page)
  const wanted = 'must be a JSON Web Key Set, {"keys": [...]}, and is HTML or XML'
  const reasonOf = async (config: KeyConfig): Promise<string> => {
    const keys = createKeySource(config, issuer.url, logOf(() => {}), SLOW)
    await refused(tokenOne, 'keysUnavailable', verifier(keys))
    keys.close?.()
    return absence(keys)
  }
  const url = `${issuer.url}/jwks?code=hidden`
  assert.equal(await reasonOf({ kind: 'url', url }), `${issuer.url}/jwks: ${wanted}`)
  const discovered = await reasonOf({ kind: 'discovery' })
  assert.match(discovered, /openid-configuration: must be an OpenID discovery document/)
  const document = discovering((base) => ({ issuer: base, jwks_uri: `${base}/keys` }))(issuer)
  issuer.answer = (request, response) =>
    (request.url === '/keys' ? page : document)(request, response)
  assert.equal(await reasonOf({ kind: 'discovery' }), `${issuer.url}/keys: ${wanted}`)
})

test('remote keys: the query of a URL is in no reason and no log line', async (t) => {
  const failures: Readonly<Record<string, RequestListener>> = {
    'a status': text('', 404),
    'too many bytes': text(' '.repeat(MIB + 1)),
    silence: () => {},
    'a redirect': text('', 302, { Location: '/jwks?code=hidden' }),
    'half a body': (_, response) =>
      response.writeHead(200, { 'Content-Length': '9' }).write('{', () => response.destroy()),
    garbage: text('code=hidden'),
  }
  for (const [name, answer] of Object.entries(failures)) {
    const issuer = await openIssuer(t, answer)
    const document = discovering((url) => ({ issuer: url, jwks_uri: `${url}/keys?code=hidden` }))(
      issuer,
    )
    const messages: string[] = []
    const log = logOf((_level, message, fields) =>
      messages.push(`${message} ${JSON.stringify(fields)}`),
    )
    const timing = name === 'silence' ? { ...SLOW, fetch: 100 } : SLOW
    const sources = [
      createKeySource(
        { kind: 'url', url: `${issuer.url}/keys?code=hidden#hidden` },
        'https://x.example',
        log,
        timing,
      ),
      createKeySource({ kind: 'discovery' }, issuer.url, log, timing),
    ]
    issuer.answer = (request, response) =>
      (request.url?.includes('.well-known') ? document : answer)(request, response)
    for (const keys of sources) {
      await refused(tokenOne, 'keysUnavailable', verifier(keys))
      assert.notEqual(absence(keys), '')
      messages.push(absence(keys))
      keys.close?.()
    }
    assert.equal(messages.length, 4, name)
    for (const line of messages) assert(!line.includes('hidden'), `${name}: ${line}`)
  }
})

test('remote keys: requests fetch three times at once, then once in 30 s', async (t) => {
  assert.equal(TIMING.refill, 30_000)
  const clock = stopClock(t)
  const failing = text('', 500)
  // Whatever the result: without a set, with a set that lacks the key, and when that set is stale.
  for (const [first, later, condition] of [
    [failing, failing, 'keysUnavailable'],
    [keySet(ONE), keySet(ONE), 'tokenInvalid'],
    [keySet(ONE), failing, 'tokenInvalid'],
  ] as const) {
    const { issuer, keys, by } = await withIssuer(t, first, { usable: 1e9 })
    keys.start?.()
    // It does not count.
    const hasEnded = (): boolean => keys.keys !== undefined || keys.isStale === true
    await until('the first attempt has ended', hasEnded)
    issuer.answer = later
    const many = async (): Promise<void> => {
      const each = () => refused(tokenTwo, condition, by)
      for (let n = 0; n < 20; n++) await each()
      await Promise.all(Array.from({ length: 20 }, each))
    }
    await many()
    assert.equal(issuer.hits, 1 + 3)
    clock.pass(SLOW.refill - 1)
    await many()
    assert.equal(issuer.hits, 1 + 3)
    for (const hits of [1 + 4, 1 + 5]) {
      clock.pass(hits === 1 + 4 ? 1 : SLOW.refill)
      await many()
      assert.equal(issuer.hits, hits)
    }
    clock.pass(10 * SLOW.refill)
    await many()
    assert.equal(issuer.hits, 1 + 5 + 3)
  }
})

test('remote keys: Retry-After is the time to the next attempt, in seconds', async (t) => {
  stopClock(t)
  for (const [retry, seconds] of [
    [30_000, '30'],
    [2_000, '2'],
  ] as const) {
    const { by } = await withIssuer(t, text('', 500), { retry })
    await assert.rejects(
      async () => by.verify(tokenOne),
      (error) => {
        assert(error instanceof HttpError)
        assert.deepEqual(error.headers, ['Retry-After', seconds])
        return true
      },
    )
  }
})

test('remote keys: an unknown kid finds a new key at once, with one fetch', async (t) => {
  stopClock(t)
  const { issuer, keys, by } = await withIssuer(t, keySet(ONE))
  await cacheToken(by, tokenOne)
  issuer.answer = keySet(TWO)
  const { keys: before } = keys
  await Promise.all(Array.from({ length: 10 }, () => accepted(tokenTwo, by)))
  assert.equal(issuer.hits, 2)
  assert.notEqual(keys.keys, before)
  await Promise.all(Array.from({ length: 10 }, () => refused(tokenOne, 'tokenInvalid', by)))
  assert.equal(issuer.hits, 3)
})

test('remote keys: a token whose kid is known, or that has none, fetches nothing', async (t) => {
  const { issuer, by } = await withIssuer(t, keySet(ONE, TWO), EAGER)
  await accepted(tokenOne, by)
  await refused(signed('RS256', rsa.privateKey), 'tokenInvalid', by)
  await refused(signed('ES256', p256.privateKey, { kid: 'two' }), 'tokenInvalid', by)
  for (const kid of [2, null, ['three']])
    await refused(signed('RS256', rsa.privateKey, { kid }), 'tokenInvalid', by)
  assert.equal(issuer.hits, 1)
})

test('remote keys: a refresh with the same keys keeps cached tokens', async (t) => {
  const { issuer, keys, by } = await withIssuer(t, keySet(ONE), { refresh: 20 })
  keys.start?.()
  await cacheToken(by, tokenOne)
  const { keys: first } = keys
  issuer.answer = text(JSON.stringify({ x: 1, keys: [ONE] }))
  const hits = issuer.hits
  await until('the set is fetched again', () => issuer.hits > hits + 2)
  assert.equal(keys.keys, first)
  assert(!(by.verify(tokenOne) instanceof Promise))
  issuer.answer = keySet(TWO)
  await until('the new set counts', () => keys.keys !== first)
  await refused(tokenOne, 'tokenInvalid', by)
  await accepted(tokenTwo, by)
})

test('remote keys: without the issuer the set is used until it is too old', async (t) => {
  const clock = stopClock(t)
  const { issuer, keys, by } = await withIssuer(t, keySet(ONE), { refresh: 10 })
  keys.start?.()
  await cacheToken(by, tokenOne)
  issuer.answer = text('', 500)
  const hits = issuer.hits
  assert.equal(keys.isStale, false)
  await until('refreshing fails', () => issuer.hits > hits + 2)
  assert.equal(keys.isStale, true)
  assert(!(by.verify(tokenOne) instanceof Promise))
  await refused(tokenTwo, 'tokenInvalid', by)
  assert.equal(absence(keys), '')
  clock.pass(SLOW.usable - 1)
  assert.equal(absence(keys), '')
  clock.pass(1)
  assert.notEqual(absence(keys), '')
  await refused(tokenOne, 'keysUnavailable', by)
  await refused(tokenTwo, 'keysUnavailable', by)
})

test('remote keys: without a set, fetches again after growing delays', async (t) => {
  const { issuer, keys, by, errors } = await withIssuer(t, text('', 500), {
    retry: 10,
    refill: 80,
  })
  const times: number[] = []
  issuer.answer = (request, response) => {
    times.push(performance.now())
    text('', 500)(request, response)
  }
  keys.start?.()
  await until('seven attempts', () => times.length === 7)
  const pauses = times.slice(1).map((time, index) => time - (times[index] ?? 0))
  for (const [index, least] of [9, 19, 39, 78, 78, 78].entries())
    assert((pauses[index] ?? 0) >= least, String(pauses))
  // The same failure is logged once.
  assert.equal(errors.length, 1)
  issuer.answer = keySet(ONE)
  await until('healed', () => keys.keys !== undefined)
  await accepted(tokenOne, by)
})

test('remote keys: once a set was fetched, the delays begin anew', async (t) => {
  const clock = stopClock(t)
  const { issuer, by } = await withIssuer(t, text('', 500), { retry: 2_000 })
  const delayIs = (seconds: string): Promise<void> =>
    assert.rejects(
      async () => by.verify(tokenOne),
      (error) => error instanceof HttpError && error.headers[1] === seconds,
    )
  await delayIs('2')
  await delayIs('4')
  issuer.answer = keySet(ONE)
  await accepted(tokenOne, by)
  issuer.answer = text('', 500)
  clock.pass(SLOW.usable)
  await delayIs('2')
})

test('remote keys: symmetric and private keys are not used, the others are', async (t) => {
  const bad = [
    { kty: 'oct', k: 'AAAA', kid: 'symmetric' },
    jwk(p256.privateKey, { kid: 'private' }),
  ]
  const { by } = await withIssuer(t, keySet(...bad, ONE))
  await accepted(tokenOne, by)
  await refused(signed('ES256', p256.privateKey, { kid: 'private' }), 'tokenInvalid', by)
  const secret = Buffer.from('AAAA', 'base64url')
  await refused(signed('HS256', secret, { kid: 'symmetric' }), 'tokenInvalid', by)
})

test('remote keys: close ends a fetch under way and all later ones', async (t) => {
  const { issuer, keys, by, errors } = await withIssuer(t, () => {}, { retry: 1, refill: 1 })
  const waiting = refused(tokenOne, 'keysUnavailable', by)
  await until('asked', () => issuer.hits === 1)
  keys.close?.()
  // Nothing else ends the wait.
  await waiting
  await pause(30)
  await refused(tokenOne, 'keysUnavailable', by)
  assert.equal(issuer.hits, 1)
  assert.deepEqual(errors, [])
})

for (const refresh of [20, 600_000]) {
  test(`remote keys: refreshed every ${refresh} ms, a set is fetched before its end`, async (t) => {
    const clock = stopClock(t)
    const { issuer, keys, by } = await withIssuer(t, keySet(ONE), { usable: 100, refresh })
    await accepted(tokenOne, by)
    // The clock is stopped, so none of these is too late.
    await until('fetched before its end', () => issuer.hits > 3)
    issuer.answer = text('', 500)
    await until('fails before its end', () => keys.isStale === true)
    assert.equal(absence(keys), '')
    clock.pass(100)
    assert.match(absence(keys), /500/)
    await refused(tokenOne, 'keysUnavailable', by)
  })
}

test('remote keys: a set that is refreshed in time stays usable', async (t) => {
  const clock = stopClock(t)
  const { issuer, keys, by } = await withIssuer(t, keySet(ONE), { usable: 300, refresh: 10 })
  await accepted(tokenOne, by)
  const { keys: first } = keys
  for (let passed = 0; passed < 1000; passed += 200) {
    // One fetch may have begun before the clock moved, and one may be under way.
    const fetched = issuer.hits + 3
    await until('fetched again', () => issuer.hits >= fetched)
    clock.pass(200)
  }
  assert.equal(keys.keys, first)
})

test('remote keys: the background keeps no process alive', async () => {
  const keys = createKeySource(
    { kind: 'url', url: 'http://127.0.0.1:9/' },
    'https://x.example',
    silent,
    SLOW,
  )
  const count = (): number =>
    process.getActiveResourcesInfo().filter((name) => name === 'Timeout').length
  const before = count()
  keys.start?.()
  assert(count() <= before)
  const untried = absence(keys)
  await until('tried', () => absence(keys) !== untried)
  assert(count() <= before)
  keys.close?.()
})

/** Answers with this discovery document, and with a key set at /jwks. */
function discovering(document: (url: string) => unknown): (issuer: Issuer) => RequestListener {
  return (issuer) => (request, response) => {
    const answer = request.url?.endsWith('/jwks')
      ? keySet(ONE)
      : text(JSON.stringify(document(issuer.url)))
    answer(request, response)
  }
}

async function discover(
  t: TestContext,
  document: (url: string) => unknown,
  suffix = '',
): Promise<Pick<Setting, 'issuer' | 'by'>> {
  const issuer = await openIssuer(t)
  issuer.answer = discovering(document)(issuer)
  const timing = { ...SLOW, refresh: 30 }
  const keys = createKeySource({ kind: 'discovery' }, issuer.url + suffix, silent, timing)
  t.after(() => keys.close?.())
  return { issuer, by: verifier(keys) }
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
    const document = (url: string): unknown => ({ issuer: url + suffix, jwks_uri: `${url}/jwks` })
    const { issuer, by } = await discover(t, document, suffix)
    await accepted(tokenOne, by)
    const documentPath = `${path}/.well-known/openid-configuration`
    assert.deepEqual(issuer.paths.slice(0, 2), [documentPath, '/jwks'])
    const fetched = (): number => issuer.paths.filter((one) => one === documentPath).length
    await until('discovered again', () => fetched() > 1)
  })
}

const BAD_DOCUMENTS: Readonly<Record<string, (url: string) => unknown>> = {
  'another issuer': (url) => ({ issuer: 'https://evil.example', jwks_uri: `${url}/jwks` }),
  'the issuer with a slash more': (url) => ({ issuer: `${url}/`, jwks_uri: `${url}/jwks` }),
  'no issuer': (url) => ({ jwks_uri: `${url}/jwks` }),
  'a list of issuers': (url) => ({ issuer: [url], jwks_uri: `${url}/jwks` }),
  'no jwks_uri': (url) => ({ issuer: url }),
  'a relative jwks_uri': (url) => ({ issuer: url, jwks_uri: '/jwks' }),
  // On Linux 0.0.0.0 is this machine: the good keys would be found there.
  'a jwks_uri over plain http': (url) => ({
    issuer: url,
    jwks_uri: `${url.replace('127.0.0.1', '0.0.0.0')}/jwks`,
  }),
  'keys within the jwks_uri': (url) => ({
    issuer: url,
    jwks_uri: `data:,${encodeURI(JSON.stringify({ keys: [ONE] }))}`,
  }),
  'a list instead of a document': (url) => [{ issuer: url, jwks_uri: `${url}/jwks` }],
}

test('discovery: with http anywhere, the jwks_uri may be http on any host', async (t) => {
  const issuer = await openIssuer(t)
  const inside = (url: string): string => `${url.replace('127.0.0.1', '0.0.0.0')}/jwks`
  issuer.answer = discovering((url) => ({ issuer: url, jwks_uri: inside(url) }))(issuer)
  const openKeys = (isAnywhere: boolean): KeySource => {
    const http = { isAnywhere, setting: 'PLANTS_X' }
    const keys = createKeySource({ kind: 'discovery' }, issuer.url, silent, SLOW, http)
    t.after(() => keys.close?.())
    return keys
  }
  const strict = openKeys(false)
  await refused(tokenOne, 'keysUnavailable', verifier(strict))
  const document = `${issuer.url}/.well-known/openid-configuration`
  const start = `${document} names a jwks_uri that must be an https URL, or http on`
  assert.ok(absence(strict).startsWith(start), absence(strict))
  assert.ok(absence(strict).includes('PLANTS_X=anywhere'))
  await accepted(tokenOne, verifier(openKeys(true)))
})

for (const [name, document] of Object.entries(BAD_DOCUMENTS)) {
  test(`discovery: ${name} is refused`, async (t) => {
    const { issuer, by } = await discover(t, document)
    await refused(tokenOne, 'keysUnavailable', by)
    assert(!issuer.paths.includes('/jwks'))
  })
}

test('remote keys: one set holds all kinds of key', async (t) => {
  const answer = keySet(
    ONE,
    jwk(p256.publicKey, { kid: 'ec' }),
    jwk(ed25519.publicKey, { kid: 'ed' }),
  )
  const { by } = await withIssuer(t, answer)
  await accepted(tokenOne, by)
  await accepted(signed('ES256', p256.privateKey, { kid: 'ec' }), by)
  await accepted(signed('EdDSA', ed25519.privateKey, { kid: 'ed' }), by)
})

test('remote keys: during a fetch, tokens of known keys are verified', async (t) => {
  const known = jwk(p521.publicKey, { kid: 'known' })
  const ofBob = claims({ sub: 'bob' })
  const bob = signed('ES512', p521.privateKey, { kid: 'known' }, ofBob)
  const { issuer, keys, by } = await withIssuer(t, keySet(known), EAGER)
  keys.start?.()
  await until('fetched', () => keys.keys !== undefined)
  let answer = (): void => {}
  issuer.answer = (request, response) => (answer = () => keySet(known, ONE)(request, response))
  const waiting = [1, 2, 3].map((jti) => {
    return accepted(signed('RS256', rsa.privateKey, { kid: 'one' }, claims({ jti })), by)
  })
  await until('asked', () => issuer.hits === 2)
  assert.equal((await by.verify(bob)).owner, 'bob')
  answer()
  await Promise.all(waiting)
})

test('remote keys: messages quote an issuer briefly', async (t) => {
  const long = 'x'.repeat(500_000)
  const deep = `${'['.repeat(100_000)}${']'.repeat(100_000)}`
  const documents: readonly ((url: string) => string)[] = [
    () => JSON.stringify({ issuer: long }),
    () => `{"issuer":${deep}}`,
    (url) => JSON.stringify({ issuer: url, jwks_uri: `${url}/${long}` }),
    (url) => JSON.stringify({ issuer: url, jwks_uri: `https://${long}` }),
  ]
  for (const document of documents) {
    const issuer = await openIssuer(t)
    issuer.answer = (request, response) => text(document(issuer.url))(request, response)
    const messages: string[] = []
    const log = logOf((_, message, fields) => messages.push(message + JSON.stringify(fields)))
    const keys = createKeySource({ kind: 'discovery' }, issuer.url, log, SLOW)
    await refused(tokenOne, 'keysUnavailable', verifier(keys))
    messages.push(absence(keys))
    assert.equal(messages.length, 2)
    for (const line of messages) {
      assert(line.length < 500 && !line.includes('call stack'), line.slice(0, 1000))
    }
    keys.close?.()
  }
})
