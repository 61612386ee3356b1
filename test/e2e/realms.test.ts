import assert from 'node:assert/strict'
import { execFile } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import { cp, mkdir, mkdtemp, rm, symlink } from 'node:fs/promises'
import { join } from 'node:path'
import { test, type TestContext } from 'node:test'
import { promisify } from 'node:util'
import { installed } from '../support/installed.ts'
import { ROOT } from '../support/release.ts'
import { LONG } from '../support/scale.ts'
import { temporaryDirectory } from '../support/service.ts'
import { PATIENCE_MS } from '../support/time.ts'

/*
 * Jest and Vitest run a program in a `vm` context: its Error is not that of Node's modules. The
 * fixtures use the service as a program does, and fail if an error is not recognized.
 */
const FIXTURES = join(ROOT, 'test/fixtures/realms')
const VM_MODULES = '--experimental-vm-modules'

/** A folder with the fixtures and this package, below a folder with others. */
async function project(t: TestContext, folder: string): Promise<string> {
  const cwd = await mkdtemp(join(folder, 'project-'))
  t.after(() => rm(cwd, { recursive: true, force: true }))
  await cp(FIXTURES, cwd, { recursive: true })
  await mkdir(join(cwd, 'node_modules'))
  await symlink(ROOT, join(cwd, 'node_modules/plant-store'))
  return cwd
}

async function node(cwd: string, ...args: readonly string[]): Promise<string> {
  const options = { cwd, timeout: PATIENCE_MS }
  const { stdout, stderr } = await promisify(execFile)(process.execPath, args, options)
  return stdout + stderr
}

test('realms: in a vm context the service stores, refuses, compacts and stops', async (t) => {
  const cwd = await project(t, await temporaryDirectory())
  const resolving = '--experimental-import-meta-resolve'
  assert.match(await node(cwd, resolving, VM_MODULES, 'in-vm.mjs'), /^done$/m)
})

test('realms: in Jest and in vmThreads of Vitest too', { skip: LONG }, async (t) => {
  const folder = await installed(FIXTURES)
  const cwd = await project(t, folder)
  const jest = [join(folder, 'node_modules/jest/bin/jest.js'), '--forceExit', '--transform={}']
  const ofJest = await node(cwd, VM_MODULES, ...jest, '--testMatch=**/*.test.mjs')
  assert.match(ofJest, /1 passed, 1 total/)
  const vitest = [join(folder, 'node_modules/vitest/vitest.mjs'), 'run', '--globals']
  assert.match(await node(cwd, ...vitest, '--pool=vmThreads'), /1 passed/)
})

test('realms: no file of src asks whether a value is instanceof a global class', () => {
  const globals = 'Error|\\w+Error|Uint8Array|ArrayBuffer|Array|Object|Date|URL|Map|Set'
  const wanted = new RegExp(`instanceof (?!ConfigError|UsageError|HttpError)(?:${globals})\\b`)
  const files = readdirSync(join(ROOT, 'src'), { recursive: true, encoding: 'utf8' })
  for (const file of files.filter((name) => name.endsWith('.ts')))
    assert.doesNotMatch(readFileSync(join(ROOT, 'src', file), 'utf8'), wanted, file)
})
