import assert from 'node:assert/strict'
import { test, type TestContext } from 'node:test'
import { createFailureLog } from '../../../dist/store/etcd/failure-log.js'
import { configOf, hasty } from '../../support/etcd-store.ts'
import { call, post } from '../../support/http.ts'
import { startService } from '../../support/service.ts'
import { type GrpcReply, isText, servingGrpc } from '../../support/serving-grpc.ts'
import { stopClock, until } from '../../support/time.ts'
import { verdict } from '../../support/verdict.ts'
import { logOf } from '../../support/log.ts'

function recorded(t: TestContext) {
  const lines: (readonly [message: string, fields: unknown])[] = []
  const report = createFailureLog(
    logOf((_level, message, fields) => lines.push([message, fields])),
  )
  return { clock: stopClock(t), report, lines }
}

test('a cause is logged once a second; the next line counts what was left out', (t) => {
  const { clock, report, lines } = recorded(t)
  for (let i = 0; i < 10; i++) report('no plant', 'denied')
  report('no plant', 'timed out')
  clock.pass(999)
  report('no plant', 'denied')
  clock.pass(1)
  for (let i = 0; i < 3; i++) report('no plant', 'denied')
  assert.deepEqual(lines, [
    ['no plant', { reason: 'denied' }],
    ['no plant', { reason: 'timed out', notLogged: 9 }],
    ['no plant', { reason: 'denied', notLogged: 1 }],
  ])
})

test('causes that all differ make 32 lines a second', (t) => {
  const { clock, report, lines } = recorded(t)
  for (let i = 0; i < 1000; i++) report('no plant', `cause ${i}`)
  assert.equal(lines.length, 32)
  clock.pass(1000)
  report('no plant', 'cause 0')
  assert.deepEqual(lines.at(-1), ['no plant', { reason: 'cause 0', notLogged: 968 }])
})

test('each 503 has its cause in the log, and no token, password, plant or owner', async (t) => {
  let said: GrpcReply = [
    [1, [[3, 7]]],
    [2, 'etcd-token.1'],
  ]
  // As a proxy in front of etcd might do: "echo" returns what was sent.
  const endpoint = await servingGrpc(t, ({ token, message }) => {
    if (!isText(said)) return said
    const [status] = said
    return [status, `${token} ${message.toString('latin1')}`]
  })
  const user = { name: 'p', password: 'pass-word' }
  const { port, adminPort, logLines } = await startService(t, {
    etcd: { ...configOf([endpoint]), user, ...hasty(200, 300) },
  })
  const readiness = () => call(adminPort, { path: '/readyz' })
  await until('it is ready', async () => (await readiness()).status === 200)
  for (const [answer, reason] of [
    [[500, 'echo'], /etcd did not answer in time: etcd answered 500, without a gRPC status/],
    [[404, 'echo'], /etcd did not answer in time: etcd answered 404, without a gRPC status/],
    [[200, 'echo'], /etcd did not answer in time: etcd answered 200, without a gRPC status/],
    [{ code: 7, message: 'etcdserver: permission denied' }, /permission denied; the user of etcd/],
  ] as const) {
    said = answer
    const from = logLines.length
    // Repeated: on a machine that stalls, an attempt may time out, and then the log says that.
    await until(`both are logged: ${reason}`, async () => {
      const replies = [await post(port, { id: 1, name: 'a plant of mine' }), await call(port)]
      for (const reply of replies) assert.equal(verdict(reply), 'storageUnavailable')
      return ['a plant could not be kept', 'plants could not be read'].every((message) =>
        logLines.slice(from).some((line) => line.includes(message) && reason.test(line)),
      )
    })
    await until('readiness says why', async () => reason.test((await readiness()).text))
  }
  for (const secret of ['etcd-token', 'pass-word', 'a plant of mine', 'YWxpY2U', 'alice'])
    assert.ok(!logLines.join('\n').includes(secret), secret)
})
