import assert from 'node:assert/strict'
import { test } from 'node:test'
import { RateLimit } from '../../dist/api/rate-limit.js'
import { call, post } from '../support/http.ts'
import { startService } from '../support/service.ts'
import { stopClock } from '../support/time.ts'
import { token } from '../support/tokens.ts'
import { headerLines, verdict } from '../support/verdict.ts'
import { head, Wire } from '../support/wire.ts'

test('scopes: GET and HEAD require the read scope, POST the write scope', async (t) => {
  const { port } = await startService(t, { readScope: 'read', writeScope: 'write' })
  const outcome = async (claims: Readonly<Record<string, unknown>>) => {
    const bearer = token('alice', claims)
    const replies = [
      await call(port, { token: bearer }),
      await post(port, { id: 1, name: 'a' }, { token: bearer }),
    ]
    assert.equal((await call(port, { method: 'HEAD', token: bearer })).status, replies[0]?.status)
    for (const [at, reply] of replies.entries()) {
      if (reply.status === 403)
        assert.deepEqual(headerLines(reply, 'www-authenticate'), [
          `Bearer realm="plants", error="insufficient_scope", scope="${['read', 'write'][at]}"`,
        ])
    }
    return replies.map(verdict)
  }
  const NO = 'scopeMissing'
  assert.deepEqual(await outcome({}), [NO, NO])
  assert.deepEqual(await outcome({ scope: 'read' }), [200, NO])
  assert.deepEqual(await outcome({ scope: 'write' }), [NO, 200])
  assert.deepEqual(await outcome({ scope: 'other write  read' }), [200, 200])
  assert.deepEqual(await outcome({ scp: ['read', 'write'] }), [200, 200])
  assert.deepEqual(await outcome({ scope: '', scp: ['read', 'write'] }), [NO, NO])
  assert.deepEqual(await outcome({ scope: 'READ reader read:all' }), [NO, NO])
  assert.deepEqual(await outcome({ scope: ['read'] }), [200, NO])
  assert.deepEqual(await outcome({ scope: { read: true } }), [NO, NO])
  const options = await call(port, { method: 'OPTIONS', token: undefined })
  assert.equal(verdict(options), 204)
})

test('rate: requests a second for each owner; the scope is checked first', async (t) => {
  const { port } = await startService(t, { rateLimit: 5, writeScope: 'write' })
  // All in one second.
  stopClock(t)
  const wire = await Wire.to(port)
  const verdicts = async (bearer: string, method: string) => {
    const before = (await wire.answers(0)).length
    wire.write(head(method, '/plants', { token: bearer }).repeat(7))
    return (await wire.answers(before + 7)).slice(before)
  }
  // A request that is refused for its scope does not count.
  assert.deepEqual(
    (await verdicts(token('alice'), 'POST')).map(verdict),
    Array.from({ length: 7 }, () => 'scopeMissing'),
  )
  const answers = await verdicts(token('alice'), 'GET')
  assert.deepEqual(answers.map(verdict), [200, 200, 200, 200, 200, 'rateLimited', 'rateLimited'])
  for (const answer of answers.filter(({ status }) => status === 429))
    assert.deepEqual(headerLines(answer, 'retry-after'), ['1'])
  // Another owner is not affected.
  assert.deepEqual((await verdicts(token('bob'), 'GET')).map(verdict), [
    200,
    200,
    200,
    200,
    200,
    'rateLimited',
    'rateLimited',
  ])
  wire.destroy()
})

test('rate: a refused request does not count, and a second allows as many again', (t) => {
  let now = 1000
  t.mock.method(performance, 'now', () => now)
  const limit = new RateLimit(3)
  const taken = () => [1, 2, 3, 4, 5].map(() => limit.waitSecondsFor('a') ?? 0)
  assert.deepEqual(taken(), [0, 0, 0, 1, 1])
  now += 333
  assert.deepEqual(limit.waitSecondsFor('a'), 1)
  now += 1
  assert.deepEqual(taken(), [0, 1, 1, 1, 1])
  now += 1000
  assert.deepEqual(taken(), [0, 0, 0, 1, 1])
  assert.equal(limit.waitSecondsFor('b'), undefined)
})
