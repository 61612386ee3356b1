import assert from 'node:assert/strict'
import { setImmediate as nextTick } from 'node:timers/promises'
import { type TestContext, test } from 'node:test'
import { readSecrets } from '../../dist/auth/secrets.js'
import { CATALOGUE } from '../../dist/errors.js'
import { Overloaded } from '../../dist/limits/budget.js'
import { FairQueue } from '../../dist/limits/fair-queue.js'
import { call } from '../support/http.ts'
import { scrape, underWay } from '../support/metrics.ts'
import { startService } from '../support/service.ts'
import { stopClock, until } from '../support/time.ts'
import { headerLines } from '../support/verdict.ts'
import { firstAnswer, head, Wire } from '../support/wire.ts'
import { AUDIENCE, accepted, claims, fixed, hs256, ISSUER, jwk, keyFile, NOW } from './tokens.ts'
import { p521, PatientVerifier, refused, RULES, STAYS, SECRET, secretKeys } from './tokens.ts'
import { signed, verifier } from './tokens.ts'

/** How many are verified at once, and how many places there are, also for these. */
const [AT_ONCE, PLACES] = [16, 512]

const SLOW_SET = keyFile(jwk(p521.publicKey, { kid: 'one' }))

/** Signed by the key of the set; each subject has another token. */
function es512(sub: string): string {
  const now = Math.floor(Date.now() / 1000)
  const payload = claims({ iat: now, exp: now + 600, sub })
  return signed('ES512', p521.privateKey, { kid: 'one' }, payload)
}

/** A service whose verifications wait until `open`; `begun` says how many there were. */
async function startHeld(t: TestContext, isOpen: boolean) {
  const { subtle } = globalThis.crypto
  const verify = subtle.verify.bind(subtle)
  let open = (): void => {}
  let opened = isOpen ? undefined : new Promise<void>((resolve) => (open = resolve))
  const mocked = t.mock.method(subtle, 'verify', async (...args: Parameters<typeof verify>) => {
    await opened
    return verify(...args)
  })
  // Before the service closes, which waits for its requests.
  t.after(() => open())
  const own = { issuer: ISSUER, audience: [AUDIENCE], jwksFile: SLOW_SET }
  const { port, adminPort } = await startService(t, own)
  return {
    port,
    adminPort,
    begun: () => mocked.mock.callCount(),
    hold: () => void (opened = new Promise<void>((resolve) => (open = resolve))),
    open: () => open(),
    ask: async (bearer: string): Promise<Wire> =>
      (await Wire.to(port)).write(head('GET', '/plants', { token: bearer })),
    metric: async (sample: string): Promise<number> =>
      (await scrape(adminPort)).value(`plant_store_${sample}`),
  }
}

test('tokens in turn: 512 have places, of which 16 are verified; more get 503', async (t) => {
  const REFUSED = 'tokens_verified_total{result="refused"}'
  const { port, adminPort, begun, hold, open, ask, metric } = await startHeld(t, true)
  const owner = es512('owner')
  assert.equal((await call(port, { token: owner })).status, 200)
  hold()
  const bad = es512('stranger').slice(0, -8)
  const wires: Wire[] = []
  for (let i = 0; i < PLACES; i++) wires.push(await ask(`${bad}${String(i).padStart(7, '0')}A`))
  await underWay(adminPort, wires.length)
  for (let i = 0; i < 3; i++) {
    const answer = await firstAnswer(port, head('GET', '/plants', { token: es512('late') }))
    const message = CATALOGUE.overloaded[1]
    assert.equal(answer.status, 503)
    assert.deepEqual(JSON.parse(answer.body), { error: 50303, message })
    assert.deepEqual(headerLines(answer, 'retry-after'), ['1'])
    assert.deepEqual(headerLines(answer, 'www-authenticate'), [])
  }
  assert.equal((await call(port, { token: owner })).status, 200)
  assert.equal(begun(), 1 + AT_ONCE)
  // A token that was not verified does not count as refused.
  assert.equal(await metric(REFUSED), 0)

  // Reset, because a client that only ends its side may still wait for its response.
  for (const wire of wires) wire.socket.resetAndDestroy()
  await until('they have left', async () => (await metric('connections')) === 0)
  open()
  await until('those that ran are refused', async () => (await metric(REFUSED)) >= AT_ONCE)
  assert.equal((await call(port, { token: es512('next') })).status, 200)
  // Of the clients that left while they waited, none was verified.
  assert.equal(begun(), 1 + AT_ONCE + 1)
  assert.equal(await metric(REFUSED), AT_ONCE)
  assert.equal(await metric('errors_total{error="50303"}'), 3)
})

test('tokens in turn: a token that others verified meanwhile is not verified again', async (t) => {
  const { adminPort, begun, open, ask, metric } = await startHeld(t, false)
  const bearer = es512('alice')
  const wires: Wire[] = []
  for (let i = 0; i < AT_ONCE + 4; i++) wires.push(await ask(bearer))
  await underWay(adminPort, wires.length)
  open()
  for (const wire of wires) {
    assert.equal((await wire.answers(1))[0]?.status, 200)
  }
  assert.equal(begun(), AT_ONCE)
  assert.equal(await metric('tokens_verified_total{result="accepted"}'), AT_ONCE)
  assert.equal(await metric('token_cache_hits_total'), 4)
})

test('tokens in turn: a new token is a piece of the queue, and a cached one is none', async (t) => {
  const clock = stopClock(t)
  const queue = new FairQueue()
  const by = new PatientVerifier(secretKeys(), RULES, () => NOW * 1000, queue)
  await accepted(hs256(), by)
  await nextTick()
  // The time of this tick is used up.
  queue.run('alice', () => clock.pass(3))
  assert.ok(!(by.verify(hs256()) instanceof Promise))
  const malformed = refused('a.b.c', 'tokenInvalid', by)
  const unread = hs256(claims({ sub: 'bob' }), { kid: 'bob' })
  const good = Promise.resolve(by.verify(unread))
  for (let at = 0; at < 20; at++) await Promise.resolve()
  assert.deepEqual(by.counts, { accepted: 1, refused: 0, cached: 1 })
  await malformed
  assert.equal((await good).owner, 'bob')
})

test('tokens in turn: a chunked body takes 8 of 512 places, or of 256 for keys', async () => {
  const never = (): Promise<never> => new Promise(() => {})
  const keys = { ...readSecrets([Buffer.alloc(32)]), find: never }
  const chunked = { isChunked: true, isOver: false }
  for (const [by, places] of [
    [verifier(fixed(keys)), PLACES],
    [verifier(fixed(keys, never)), PLACES / 2],
  ] as const) {
    for (let at = 0; at < places / 8 - 1; at++) void by.verify(hs256(), chunked)
    for (let at = 0; at < 8; at++) void by.verify(hs256())
    for (const client of [chunked, STAYS])
      await assert.rejects(async () => by.verify(hs256(), client), Overloaded)
  }
})

test('tokens in turn: 256 tokens wait for keys, and known keys verify meanwhile', async () => {
  const keys = readSecrets([SECRET])
  let arrive = (): void => {}
  const fetched = new Promise<void>((resolve) => (arrive = resolve))
  // Of a token without a kid, the key is known.
  const by = verifier(fixed(keys, (kid) => (kid === undefined ? undefined : fetched)))
  const unknown = (): Promise<void> => accepted(hs256(claims(), { kid: 'unknown' }), by)
  const waiting = Array.from({ length: 256 }, unknown)
  for (let i = 0; i < 3; i++) await assert.rejects(unknown(), Overloaded)
  await accepted(hs256(), by)
  arrive()
  await Promise.all(waiting)
  // The places are free again. A token that was verified would not need one.
  await accepted(hs256(claims({ jti: 'other' }), { kid: 'unknown' }), by)
})
