import assert from 'node:assert/strict'
import { test } from 'node:test'
import { type Asked, type FakeReply, fakeEtcd, ok } from '../../support/etcd-fake.ts'
import { configOf, hasty, hurry, untilReadiness } from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { startService } from '../../support/service.ts'
import { until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'

test('readiness and the log say why etcd fails: no token, password, plant or owner', async (t) => {
  hurry(t)
  let answer = (_: Asked): FakeReply => ok({ token: 'etcd-token.1' })
  const { endpoint } = await fakeEtcd(
    t,
    (asked) => answer(asked),
    (asked) => answer(asked),
  )
  const user = { name: 'p', password: 'pass-word' }
  const { port, adminPort, logLines } = await startService(t, {
    logLevel: 'debug',
    etcd: { ...configOf([endpoint]), user, ...hasty(200, 300) },
  })
  await untilReadiness(adminPort, 200)
  // What was sent is returned, as a proxy in front of etcd might do.
  answer = ({ headers, body }) => [502, `${headers.authorization} ${body}`]
  const reason = /etcd did not answer in time: etcd answered 502 without JSON/
  // Repeated: on a machine that stalls, an attempt may time out, and then the log says that.
  await until('it is logged', async () => {
    const replies = [await post(port, { id: 1, name: 'a plant of mine' }), await call(port)]
    for (const reply of replies) assert.equal(verdict(reply), 'storageUnavailable')
    return logLines.filter((line) => reason.test(line)).length >= 3
  })
  await untilReadiness(adminPort, 503, reason)
  const value = Buffer.from('{"name":"a plant of mine"}').toString('base64').slice(0, 16)
  for (const secret of ['etcd-token', 'pass-word', 'a plant of mine', value, 'YWxpY2U', 'alice'])
    assert.ok(!logLines.join('\n').includes(secret), secret)
})
