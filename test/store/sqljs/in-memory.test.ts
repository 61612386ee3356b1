import assert from 'node:assert/strict'
import { readdirSync } from 'node:fs'
import { resolve } from 'node:path'
import { test } from 'node:test'
import { readConfig } from '../../../dist/settings/read.js'
import { call, post } from '../../support/http.ts'
import { command, PERMISSION, startProcess } from '../../support/process.ts'
import { ROOT } from '../../support/release.ts'
import { temporaryDirectory } from '../../support/service.ts'
import { token } from '../../support/tokens.ts'

const ALICE = { token: token('alice') }

test('in memory: it serves where it may open no file and start no thread', async (t) => {
  const cwd = await temporaryDirectory()
  // It must load its own code.
  const options = [...PERMISSION, `--allow-fs-read=${ROOT}`]
  const server = await startProcess(t, ':memory:', {}, ['serve'], { options, cwd })
  // More than the journals of a store on a disk may have before they are compacted.
  for (let id = 1; id <= 10; id++) {
    const created = await post(server.port, { id, name: 'x'.repeat(1_000_000) }, ALICE)
    assert.equal(created.status, 200)
  }
  assert.equal((await post(server.port, { id: 1, name: 'Fern' }, ALICE)).status, 409)
  const page = await call(server.port, { path: '/plants?limit=1', ...ALICE })
  assert.deepEqual([page.status, page.text.length], [200, 1_000_013])
  assert.equal((await call(server.adminPort, { path: '/readyz' })).status, 200)
  assert.equal(await server.kill('SIGTERM'), 0)
  assert.equal(server.output().split('in memory alone').length, 2)
  assert.doesNotMatch(server.output(), /"level":"error"/)
  assert.deepEqual(readdirSync(cwd), [])
})

test('in memory: the commands that need files refuse it, and say why', async () => {
  const cwd = await temporaryDirectory()
  const env = { PLANTS_DATA: ':memory:' }
  const why = 'is :memory:, where nothing is kept: only "serve" without --dev can use that'
  const commands = [
    'check',
    'export a.sqlite',
    'import a.sqlite',
    'token --sub alice',
    'serve --dev',
  ]
  for (const each of commands) {
    const stderr = `plant-store: PLANTS_DATA ${why}\n`
    const outcome = await command(each.split(' '), env, cwd)
    assert.deepEqual(outcome, { status: 2, stdout: '', stderr })
  }
  assert.deepEqual(readdirSync(cwd), [])
})

test('in memory: a directory of that name is ./:memory:', () => {
  const dataOf = (given: string): string => readConfig({ PLANTS_DATA: given }, 'storage').data
  assert.equal(dataOf('./:memory:'), resolve(':memory:'))
})
