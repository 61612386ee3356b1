import { mkdtempSync, readFileSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Content } from '../../test/support/ledger.ts'
import type { Grant } from '../../test/support/oracle/realm.ts'
import type { Script } from './talk.ts'

/** What a connection sent and what was known before it: enough to repeat it. */
export interface Finding {
  readonly what: string
  readonly realm: string
  readonly script: Script
  /** What its tokens allow. */
  readonly grants: readonly (readonly [token: string, grant: Grant])[]
  readonly owners: readonly {
    readonly name: string
    readonly token: string
    readonly plants: readonly (readonly [id: string, content: Content])[]
  }[]
}

/** Where a new finding goes. */
export function findingFile(): string {
  return join(mkdtempSync(join(tmpdir(), 'plant-store-finding-')), 'finding.json')
}

/** At once, so that it survives the end of the run; a smaller one may take its place. */
export function saveFinding(file: string, finding: Finding): void {
  writeFileSync(file, JSON.stringify(finding))
}

export function loadFinding(file: string): Finding {
  // Written by the function above.
  return JSON.parse(readFileSync(file, 'utf8')) as Finding
}
