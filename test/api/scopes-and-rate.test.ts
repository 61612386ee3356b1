import assert from 'node:assert/strict'
import { test } from 'node:test'
import { rateLimitOf } from '../../dist/api/rate-limit.js'
import type { Caller } from '../../dist/auth/caller.js'
import { ALICE, startBare } from '../support/bare.ts'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { stopClock } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, Wire } from '../support/wire.ts'

test('scopes: GET and HEAD require the read scope, POST the write scope', async (t) => {
  const { port } = await startService(t, { readScope: 'read', writeScope: 'write' })
  const NO = 'scopeMissing'
  const challenge = (scope: string) =>
    `Bearer realm="plants", error="insufficient_scope", scope="${scope}"`
  for (const [claims, read, write] of [
    [{}, NO, NO],
    [{ scope: 'read' }, 200, NO],
    [{ scope: 'write' }, NO, 200],
    [{ scope: 'other write  read' }, 200, 200],
    [{ scp: ['read', 'write'] }, 200, 200],
    [{ scope: '', scp: ['read', 'write'] }, NO, NO],
    [{ scope: 'READ reader read:all' }, NO, NO],
    [{ scope: ['read'] }, 200, NO],
    [{ scope: { read: true, write: false } }, 200, NO],
    [{ scope: { read: {}, write: ['write'] } }, NO, NO],
  ] as const) {
    const bearer = { token: token('alice', claims) }
    const list = await call(port, bearer)
    const create = await post(port, { id: 1, name: 'a' }, bearer)
    assert.deepEqual([verdict(list), verdict(create)], [read, write], JSON.stringify(claims))
    assert.equal((await call(port, { method: 'HEAD', ...bearer })).status, list.status)
    for (const reply of [list, create].filter(({ status }) => status === 403))
      assert.equal(reply.headers['www-authenticate'], challenge(reply === list ? 'read' : 'write'))
  }
  assert.equal(verdict(await call(port, { method: 'OPTIONS', token: undefined })), 204)
})

test('rate: requests a second for each owner; the scope is checked first', async (t) => {
  const { port } = await startService(t, { rateLimit: 5, writeScope: 'write' })
  // All in one second.
  stopClock(t)
  const expected = [200, 200, 200, 200, 200, 'rateLimited', 'rateLimited']
  for (const [owner, method, verdicts] of [
    // A request that is refused for its scope does not count.
    ['alice', 'POST', Array<string>(7).fill('scopeMissing')],
    ['alice', 'GET', expected],
    // Another owner is not affected.
    ['bob', 'GET', expected],
  ] as const) {
    const wire = await Wire.to(port)
    wire.write(head(method, '/plants', { token: token(owner) }).repeat(7))
    const answers = await wire.answers(7)
    // A stop waits by the clock that is stopped.
    wire.destroy()
    assert.deepEqual(answers.map(verdict), verdicts)
    for (const answer of answers)
      assert.deepEqual(headerLines(answer, 'retry-after'), answer.status === 429 ? ['1'] : [])
  }
})

test('rate: owners whose hashes begin alike are told apart', async (t) => {
  const authenticate = (bearer: string): Caller => ({
    ...ALICE,
    ownerHash: `${'0'.repeat(60)}${bearer}`,
  })
  const { port } = await startBare(t, { authenticate, rateLimit: rateLimitOf(1) })
  stopClock(t)
  const ask = async (bearer: string) => verdict(await call(port, { token: bearer }))
  const found = [await ask('aaaa'), await ask('bbbb'), await ask('aaaa')]
  assert.deepEqual(found, [200, 200, 'rateLimited'])
})

test('rate: a refused request does not count, and a second allows as many again', (t) => {
  let now = 1000
  t.mock.method(performance, 'now', () => now)
  const limit = rateLimitOf(3)
  const taken = () => [1, 2, 3, 4, 5].map(() => limit('a') ?? 0)
  assert.deepEqual(taken(), [0, 0, 0, 1, 1])
  now += 333
  assert.deepEqual(limit('a'), 1)
  now += 1
  assert.deepEqual(taken(), [0, 1, 1, 1, 1])
  now += 1000
  assert.deepEqual(taken(), [0, 0, 0, 1, 1])
  assert.equal(limit('b'), undefined)
})
