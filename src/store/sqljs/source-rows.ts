import { types } from 'node:util'
import type { Database, FileBytes, SqlJs, Statement, Value } from 'sql.js'
import { metaOf } from './meta.ts'
import type { PageFile } from './page-file.ts'
import { ownSqlite, valueOf } from './sqlite.ts'

/** Says what a value is that has the wrong type. */
interface Odd {
  readonly is: string
}

/** A row of a file of any origin. */
export interface Cells {
  readonly owner: string | Odd
  readonly id: bigint | Odd
  readonly name: string | Odd
  readonly tag: string | Odd
}

export const NULL = 'NULL'
const KINDS: Readonly<Record<string, string>> = {
  null: NULL,
  integer: 'an integer',
  real: 'a real number',
  text: 'text',
  blob: 'a blob',
}

/*
 * The bytes of a text; the type's name of anything else. Of a text, sql.js would drop a byte order
 * mark at its start, and replace what is not valid by U+FFFD, which makes one owner of two.
 */
const textOf = (column: string): string =>
  `iif(typeof(${column}) = 'text', CAST(${column} AS BLOB), typeof(${column}))`
/*
 * No ORDER BY and no index: sorting rows that never end would never return one. Reading a plain
 * table from its first page to its last runs no code that is in the file.
 */
const ROWS = `
  SELECT ${textOf('owner')}, iif(typeof(id) = 'integer', id, typeof(id)),
    ${textOf('name')}, ${textOf('tag')}
  FROM main.plants NOT INDEXED`
/** A row takes 4 bytes of a page, and 2 in its list of rows (sqlite.org/fileformat2.html, 1.6). */
const MIN_ROW_BYTES = 6

type Decoder = InstanceType<typeof TextDecoder>

interface SourceRows {
  /** Every row, in the table's order. @throws Error when the file is damaged. */
  readonly rows: Generator<Cells>
  /** How many there are, if they could be counted. */
  readonly total: number | undefined
  /** Whether the file is a snapshot that needs journals: a service ran when it was made. */
  readonly isPartial: boolean
}

/**
 * The table of plants in a file.
 * @throws Error when the file has no such table.
 */
export async function openRows(pages: PageFile): Promise<SourceRows> {
  const library = await ownSqlite()
  return pages.through(() => rowsIn(library, pages))
}

function rowsIn(library: SqlJs, pages: PageFile): SourceRows {
  const db = new library.Database(pages.bytes)
  try {
    // What sqlite.org/security.html asks for, as far as it is not the default here.
    db.run('PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON')
    refuseOtherThanTable(db)
    const encoding = String(valueOf(db, 'PRAGMA encoding'))
    const decoder = new TextDecoder(encoding, { fatal: true, ignoreBOM: true })
    const maxRows = pages.lengthBytes / MIN_ROW_BYTES
    const rows = rowsOf(pages, db, db.prepare(ROWS), decoder, maxRows)
    const total = countRows(db, Math.ceil(maxRows))
    return { rows, total, isPartial: isPartial(library, pages.bytes) }
  } catch (error) {
    db.close()
    throw error
  }
}

function* rowsOf(
  pages: PageFile,
  db: Database,
  rows: Statement,
  decoder: Decoder,
  maxRows: number,
): Generator<Cells> {
  try {
    for (let read = 1; rows.step(); read++) {
      // Pages that refer to each other return the same rows again and again.
      if (read > maxRows) throw new Error('it has more rows than it has room for')
      const [owner, id, name, tag] = rows.get(null, { useBigInt: true })
      yield {
        owner: cellOf(decoder, owner),
        id: typeof id === 'bigint' ? id : { is: kindOf(id) },
        name: cellOf(decoder, name),
        tag: cellOf(decoder, tag),
      }
    }
  } catch (error) {
    throw pages.causeOf(error)
  } finally {
    db.close()
  }
}

function isPartial(library: SqlJs, bytes: FileBytes): boolean {
  try {
    const { format, complete } = metaOf(library, bytes)
    return Number.isInteger(format) && !complete
  } catch {
    // It is no snapshot.
    return false
  }
}

/** Undefined for a damaged file: reading its rows says more. */
function countRows(db: Database, maxRows: number): number | undefined {
  try {
    const some = `SELECT 1 FROM main.plants NOT INDEXED LIMIT ${maxRows}`
    return Number(valueOf(db, `SELECT count(*) FROM (${some})`))
  } catch {
    return undefined
  }
}

/** A view can run without end; virtual tables and generated columns run what the file says. */
function refuseOtherThanTable(db: Database): void {
  const [found] = all(db, 'PRAGMA main.table_list(plants)')
  if (!found) throw new Error('there is no table named plants')
  const type = String(found[2])
  const kind = type === 'view' ? type : `${type} table`
  if (type !== 'table') throw new Error(`plants must be a plain table, and is a ${kind}`)
  // The last value of each column says whether it is hidden or generated.
  if (all(db, 'PRAGMA main.table_xinfo(plants)').some((column) => column.at(-1) !== 0)) {
    throw new Error('plants must be a plain table, and has a generated column')
  }
}

function cellOf(decoder: Decoder, value: Value | undefined): string | Odd {
  if (!types.isUint8Array(value)) return { is: kindOf(value) }
  try {
    return decoder.decode(value)
  } catch {
    return { is: `not valid ${decoder.encoding.toUpperCase()}` }
  }
}

function kindOf(value: Value | undefined): string {
  return KINDS[String(value)] ?? 'not known'
}

function all(db: Database, sql: string): Value[][] {
  const statement = db.prepare(sql)
  const rows: Value[][] = []
  while (statement.step()) rows.push(statement.get())
  statement.free()
  return rows
}
