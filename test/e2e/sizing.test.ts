import assert from 'node:assert/strict'
import { join } from 'node:path'
import { test } from 'node:test'
import { fill, groupOf } from '../support/container.ts'
import { tableOf } from '../support/documents.ts'
import { call } from '../support/http.ts'
import { startProcess } from '../support/process.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { token } from '../support/tokens.ts'

const UNTRIED = 'SKIPPED: this machine lets no group of processes be made (Linux, as root)'

test('sizing: the smallest container is filled, and starts again', { skip: LONG }, async (t) => {
  const [limit = '', oldSpace = '', dataBytes = '', plants = ''] =
    tableOf('scripts/deploy/README.md', 'container')[0] ?? []
  const group = groupOf(Number.parseInt(limit))
  if (!group) {
    console.log(UNTRIED)
    return t.skip(UNTRIED)
  }
  const data = join(await temporaryDirectory(), 'data')
  const env = { PLANTS_MAX_DATA_BYTES: dataBytes.replaceAll('`', '') }
  const options = ['--max-semi-space-size=4', `--max-old-space-size=${oldSpace}`]
  const start = () => startProcess(t, data, env, ['serve'], { options, prefix: group.prefix })
  const full = await start()
  const { created, refusedWith } = await fill(full, 0, 200)
  assert.equal(refusedWith, 507)
  const documented = Number(plants.replaceAll(',', ''))
  assert.ok(Math.abs(created - documented) < documented / 20, `${created} plants`)
  assert.equal(await full.kill('SIGTERM'), 0)
  const again = await start()
  const first = { path: '/plants?limit=1', token: token('user-0') }
  assert.equal((await call(again.port, first)).text, '[{"name":"Monstera 0 ","tag":"indoor"}]')
  assert.equal(await again.kill('SIGTERM'), 0)
  await group.remove()
})
