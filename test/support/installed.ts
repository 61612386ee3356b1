import { execFile } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync } from 'node:fs'
import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { PATIENCE_MS } from './time.ts'

/** A folder with the packages that the manifest of a fixture names. It is kept for later runs. */
export async function installed(fixture: string): Promise<string> {
  const manifest = await readFile(join(fixture, 'package.json'), 'utf8')
  const hash = createHash('sha256').update(manifest).digest('hex').slice(0, 12)
  const kept = join(tmpdir(), `plant-store-installed-${process.getuid?.() ?? 0}-${hash}`)
  if (existsSync(kept)) return kept
  const cwd = await mkdtemp(`${kept}-`)
  await writeFile(join(cwd, 'package.json'), manifest)
  const retry = ['--fetch-retries=1', '--fetch-retry-mintimeout=1000']
  const args = ['install', '--ignore-scripts', '--no-audit', '--no-fund', ...retry]
  try {
    await promisify(execFile)('npm', args, { cwd, timeout: PATIENCE_MS })
    await rename(cwd, kept)
  } catch (error) {
    await rm(cwd, { recursive: true, force: true })
    // Another run may have been first.
    if (!existsSync(kept)) throw error
  }
  return kept
}
